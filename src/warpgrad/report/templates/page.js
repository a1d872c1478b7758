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
