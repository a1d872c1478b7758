"use strict";
(() => {
  // Copy buttons: the clipboard where the browser allows it, otherwise the text is selected for the reader.
  for (const button of document.querySelectorAll("button[data-copy]")) {
    const code = button.closest(".code").querySelector("code");
    button.hidden = false;
    button.addEventListener("click", async () => {
      let said = "Copied";
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        said = "Selected";
      }
      button.textContent = said;
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    });
  }

  // The table of contents shows where the reader is: the last heading above the upper third of the window, or the first.
  const links = new Map();
  for (const link of document.querySelectorAll("nav a")) {
    links.set(document.getElementById(decodeURIComponent(link.hash.slice(1))), link);
  }
  let current = null;
  const follow = () => {
    let found = links.values().next().value ?? null;
    for (const [heading, link] of links) {
      if (heading.getBoundingClientRect().top < innerHeight / 3) found = link;
    }
    if (found === current) return;
    current?.removeAttribute("aria-current");
    found?.setAttribute("aria-current", "true");
    current = found;
  };
  addEventListener("scroll", follow, { passive: true });
  addEventListener("resize", follow, { passive: true });
  follow();

  // Columns are sorted by a click on their head: numbers by their size, the greatest first, and words by the alphabet.
  // A number may be written as a power of ten, and a unit may follow it.
  const powers = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const valueOf = (row, place) => {
    const cell = row.cells[place];
    const text = (cell.dataset.value ?? cell.textContent).trim().replaceAll("−", "-").replace(/[,%]/g, "")
      .replace(/·10(⁻?)([⁰¹²³⁴⁵⁶⁷⁸⁹]+)/, (_, sign, digits) => `e${sign && "-"}${[...digits].map((one) => powers.indexOf(one)).join("")}`);
    if (text === "" || text === "–") return null;
    return /^[-+]?\d*\.?\d+(e[-+]?\d+)?(\s*[^\d\s]*)?$/i.test(text) ? Number.parseFloat(text) : text;
  };
  for (const table of document.querySelectorAll(".sortable table")) {
    const body = table.tBodies[0];
    if (body.rows.length < 2) continue;
    for (const head of table.tHead.rows[0].cells) {
      const sorter = document.createElement("button");
      sorter.type = "button";
      sorter.append(...head.childNodes);
      head.append(sorter);
      sorter.addEventListener("click", () => {
        const place = head.cellIndex;
        const values = new Map([...body.rows].map((row) => [row, valueOf(row, place)]));
        // Among numbers, a remark such as "not finite" stands where there is no number.
        const kinds = [...values.values()].map((value) => typeof value);
        const words = kinds.filter((kind) => kind === "string").length > kinds.filter((kind) => kind === "number").length;
        if (!words) for (const [row, value] of values) if (typeof value === "string") values.set(row, null);
        const first = words ? "ascending" : "descending";
        const order = head.getAttribute("aria-sort") === first ? (words ? "descending" : "ascending") : first;
        const sign = order === "ascending" ? 1 : -1;
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", order);
        const compare = (one, other) => {
          const [a, b] = [values.get(one), values.get(other)];
          if (a === null || b === null) return (a === null) - (b === null);
          return sign * (words ? String(a).localeCompare(String(b)) : a - b);
        };
        body.append(...[...body.rows].sort(compare));
      });
    }
  }

  // What the reader leaves out is hidden in every table, forest plot and chart.
  for (const choice of document.querySelectorAll(".choice")) {
    choice.hidden = false;
    choice.open = innerWidth > 960;
    const kind = choice.dataset.choice;
    choice.addEventListener("change", () => {
      const hidden = [...choice.querySelectorAll("input:not(:checked)")].map((box) => box.value);
      if (kind === "method") {
        for (const row of document.querySelectorAll("tr[data-method]")) {
          row.hidden = hidden.includes(row.dataset.method);
        }
      }
      dispatchEvent(new CustomEvent("choice", { detail: { kind, hidden } }));
    });
  }

  // Paper cannot be clicked: what is folded is open in print, and folded again afterwards.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });

  document.documentElement.dataset.ready = "true";
})();
