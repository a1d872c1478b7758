(() => {
  // Charts: each is described by the JSON beside it, and drawn by the library when the reader comes near it.
  Bokeh.logger.set_level("warn");
  const { Plotting, Models } = Bokeh;
  const model = (name) => Models.get ? Models.get(name) : Models[name];
  const theme = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");
  const hiddenMethods = new Set();
  const hiddenSeeds = new Set();

  const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const element = (tag, name, ...children) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    made.append(...children);
    return made;
  };

  const button = (text, title, pressed) => {
    const made = element("button", "", text);
    made.type = "button";
    made.title = title;
    if (pressed !== undefined) made.setAttribute("aria-pressed", pressed);
    return made;
  };

  // Four digits, as in the tables; powers of ten where that would be long.
  const shown = (value) => {
    if (value === null || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replace("-", "−");
    return String(Number(value.toPrecision(4))).replace("-", "−");
  };

  // An average that forgets: each value counts `weight` times as much as the next; gaps stay gaps.
  const smoothed = (values, weight) => {
    if (!weight || !values) return values;
    let sum = 0, mass = 0;
    return values.map((value) => {
      if (value === null || !Number.isFinite(value)) return value;
      sum = weight * sum + value;
      mass = weight * mass + 1;
      return sum / mass;
    });
  };

  const numbers = (values) => Float64Array.from(values, (value) => value ?? NaN);

  class Chart {
    constructor(figure) {
      this.host = figure.querySelector(".plot");
      this.spec = JSON.parse(figure.querySelector("script").textContent);
      this.log = this.spec.logY;
      this.smooth = 0;
      this.single = false;
      this.hidden = new Set(this.spec.series.filter((one) => !one.shown).map((one) => one.name));
      this.drawn = false;
      this.card = figure.querySelector(".card");
      this.controls();
      this.legend();
      this.tip = element("div", "tip");
      this.tip.hidden = true;
      this.card.append(this.tip);
      this.host.addEventListener("pointerleave", () => this.leave());
    }

    controls() {
      const { spec } = this;
      const bar = element("div", "tools");
      const title = element("strong", "", spec.title || spec.yLabel);
      const tools = element("span", "buttons");
      if (spec.series.some((one) => !one.points)) {
        const slider = element("input");
        Object.assign(slider, { type: "range", min: 0, max: 0.98, step: 0.02, value: 0 });
        slider.setAttribute("aria-label", "Smoothing");
        slider.addEventListener("input", () => { this.smooth = Number(slider.value); this.fill(); });
        const label = element("label", "smooth", "Smooth ", slider);
        tools.append(label);
      }
      const positive = spec.series.every((one) => one.y.every((value) => value === null || value > 0));
      if (positive) {
        const log = button("Log", "Logarithmic or linear axis", this.log);
        log.addEventListener("click", () => {
          this.log = !this.log;
          log.setAttribute("aria-pressed", this.log);
          this.draw();
        });
        tools.append(log);
      }
      if (spec.series.some((one) => one.runs)) {
        const single = button("Runs", "Show the curve of every run", false);
        single.addEventListener("click", () => this.separate(!this.single));
        this.separator = single;
        tools.append(single);
      }
      const reset = button("Reset", "Show the whole chart again; drag in it to zoom");
      reset.addEventListener("click", () => this.plot?.reset.emit());
      tools.append(reset);
      bar.append(title, tools);
      this.card.prepend(bar);
    }

    legend() {
      const { spec } = this;
      if (spec.series.length < 2) return;
      const list = element("div", "keys");
      this.keys = spec.series.map((one) => {
        const key = button("", "Click: hide or show. Double click: show this one alone", true);
        key.className = `key c${one.colour}`;
        key.append(this.stroke(one), one.name);
        key.addEventListener("click", () => { this.toggle(one.name); });
        key.addEventListener("dblclick", () => {
          this.hidden = new Set(spec.series.map((other) => other.name).filter((name) => name !== one.name));
          this.show();
        });
        list.append(key);
        return key;
      });
      this.card.append(list);
    }

    stroke(one) {
      const space = "http://www.w3.org/2000/svg";
      const svg = document.createElementNS(space, "svg");
      const line = document.createElementNS(space, "line");
      // A stroke without length but with round ends is a dot.
      const ends = one.line ? { x1: 0, x2: 26, "stroke-width": 3 } : { x1: 13, x2: 13, "stroke-width": 8, "stroke-linecap": "round" };
      for (const [name, value] of Object.entries({ ...ends, y1: 5, y2: 5 })) line.setAttribute(name, value);
      if (one.line && one.dash.length) line.setAttribute("stroke-dasharray", one.dash.map((part) => 2 * part).join(" "));
      svg.append(line);
      return svg;
    }

    toggle(name) {
      this.hidden.has(name) ? this.hidden.delete(name) : this.hidden.add(name);
      this.show();
    }

    // Every run instead of their band.
    separate(single) {
      if (!this.separator) return;
      this.single = single;
      this.separator.setAttribute("aria-pressed", single);
      this.show();
    }

    visible(one) { return !this.hidden.has(one.name) && !hiddenMethods.has(one.method); }

    async draw() {
      const { spec } = this;
      const [ink, soft, line] = ["--ink", "--soft", "--line"].map(colourOf);
      // What never changes, such as a step size, is a line in the middle of an axis around it.
      const largest = Math.max(...spec.series.flatMap((one) => one.y.map((value) => Math.abs(value ?? 0))));
      const span = this.log || !(largest > 0) ? 2 : 0.2 * largest;
      const range = () => new (model("DataRange1d"))({ only_visible: true, range_padding: 0.05, default_span: span });
      const zoom = new (model("BoxZoomTool"))();
      const tools = [zoom, new (model("WheelZoomTool"))({ modifiers: { ctrl: true } }), new (model("ResetTool"))()];
      const plot = Plotting.figure({
        height: Number(this.card.dataset.height ?? 320),
        sizing_mode: "stretch_width",
        x_axis_type: spec.logX ? "log" : "linear",
        y_axis_type: this.log ? "log" : "linear",
        x_range: range(),
        y_range: range(),
        tools,
        toolbar_location: null,
        background_fill_color: null,
        border_fill_color: null,
        outline_line_color: null,
        x_axis_label: spec.xLabel,
        y_axis_label: spec.title && spec.yLabel ? spec.yLabel : null,
      });
      // A finger scrolls the page; only a mouse draws a box.
      plot.toolbar.active_drag = touch.matches ? null : zoom;
      for (const axis of [...plot.xaxes, ...plot.yaxes]) {
        Object.assign(axis, {
          axis_label_text_color: soft, axis_label_text_font_style: "normal", axis_label_text_font_size: "12px",
          axis_label_text_font: "sans-serif", major_label_text_font: "sans-serif", major_label_text_color: soft, major_label_text_font_size: "12px",
          axis_line_color: line, major_tick_line_color: line, minor_tick_line_color: null,
        });
      }
      for (const grid of [...plot.xgrids, ...plot.ygrids]) grid.grid_line_color = line;
      plot.xgrids.forEach((grid) => { grid.grid_line_color = null; });
      if (spec.choices.length) {
        plot.xaxes[0].ticker = new (model("FixedTicker"))({ ticks: spec.choices.map((_, place) => place) });
        plot.xaxes[0].major_label_overrides = new Map(spec.choices.map((choice, place) => [place, choice]));
      } else if (spec.ticks) {
        plot.xaxes[0].ticker = new (model("FixedTicker"))({ ticks: spec.ticks });
      }
      this.parts = spec.series.map((one) => this.series(plot, one));
      this.around(plot, ink, soft);
      this.cross = new (model("Span"))({ dimension: "height", line_color: soft, line_width: 1, location: null });
      plot.add_layout(this.cross);
      plot.on_event("mousemove", (event) => this.hover(event));
      plot.on_event("mouseleave", () => this.leave());
      this.plot = plot;
      this.drawn = true;
      this.fill();
      this.show();
      const old = this.view;
      const into = element("div");
      this.host.append(into);
      this.view = await Plotting.show(plot, into);
      if (old) this.host.firstChild.remove();
      this.card.dataset.drawn = "true";
    }

    series(plot, one) {
      const colour = colourOf(`--c${one.colour}`);
      const source = new (model("ColumnDataSource"))({ data: {} });
      const at = { x: { field: "x" }, source };
      const dash = one.dash.map((part) => Math.max(1, Math.round(2.4 * part)));
      const runs = Object.keys(one.runs ?? {}).map((seed) => ({
        seed,
        line: plot.line({ ...at, y: { field: `run ${seed}` }, line_color: colour, line_alpha: 0.5, line_width: 1 }),
      }));
      const band = one.low && plot.varea({
        ...at, y1: { field: "low" }, y2: { field: "high" }, fill_color: colour, fill_alpha: theme.matches ? 0.24 : 0.16,
      });
      const raw = plot.line({ ...at, y: { field: "raw" }, line_color: colour, line_alpha: 0.25, line_width: 1 });
      const line = one.line && plot.line({ ...at, y: { field: "y" }, line_color: colour, line_width: 2.4, line_dash: dash });
      const dots = one.points
        && plot.scatter({ ...at, y: { field: "y" }, fill_color: colour, fill_alpha: 0.8, line_color: colour, size: 7 });
      return { one, source, band, raw, lines: [...(line ? [line] : []), ...(dots ? [dots] : [])], runs };
    }

    // Lines to compare with; an invisible point keeps each of them in sight.
    around(plot, ink, soft) {
      const { spec } = this;
      const label = (x, y, text, more) => plot.add_layout(new (model("Label"))({
        x, y, text, text_color: soft, text_font: "sans-serif", text_font_size: "12px", x_offset: 4, y_offset: 3, ...more,
      }));
      const places = [...spec.x.flat(), ...spec.marks.filter((mark) => mark.height !== null).map((mark) => mark.value)];
      const [first, last] = [Math.min, Math.max].map((end) => end(...places.filter((value) => value !== null)));
      // At the left and at the right in turn, so that the names of two close lines do not overlap.
      for (const [place, reference] of spec.references.entries()) {
        if (reference.value === null || (this.log && reference.value <= 0)) continue;
        const colour = reference.colour === null ? soft : colourOf(`--c${reference.colour}`);
        plot.add_layout(new (model("Span"))({
          dimension: "width", location: reference.value, line_color: colour, line_dash: [4, 4], line_width: 1.4,
        }));
        plot.scatter({ x: [first], y: [reference.value], fill_alpha: 0, line_alpha: 0, size: 1 });
        const right = { text_align: "right", x_offset: -4 };
        if (reference.label) label(place % 2 ? last : first, reference.value, reference.label, place % 2 ? right : {});
      }
      for (const mark of spec.marks) {
        plot.add_layout(new (model("Span"))({
          dimension: "height", location: mark.value, line_color: soft, line_dash: [4, 4], line_width: 1.4,
        }));
        if (mark.height === null) {
          label(mark.value, 0, mark.label, { y_units: "screen" });
        } else {
          plot.scatter({ x: [mark.value], y: [mark.height], marker: "star", fill_color: ink, line_color: ink, size: 13 });
          const left = { text_align: "right", text_baseline: "middle", x_offset: -9, y_offset: 0 };
          label(mark.value, mark.height, mark.label, left);
        }
      }
    }

    // The data as they are smoothed now.
    fill() {
      if (!this.drawn) return;
      for (const part of this.parts) {
        const { one, source } = part;
        const soft = (values) => smoothed(values, this.smooth);
        const floor = this.log ? Math.min(...one.y.filter((value) => value > 0)) / 10 : -Infinity;
        const data = { x: numbers(this.spec.x[one.x]), y: numbers(soft(one.y)), raw: numbers(one.y) };
        if (one.low) {
          data.low = numbers(soft(one.low)).map((value) => Math.max(value, floor));
          data.high = numbers(soft(one.high)).map((value) => Math.max(value, floor));
        }
        for (const [seed, values] of Object.entries(one.runs ?? {})) data[`run ${seed}`] = numbers(soft(values));
        source.data = data;
        part.now = data.y;
      }
      this.show();
    }

    show() {
      this.keys?.forEach((key, place) => {
        const one = this.spec.series[place];
        key.setAttribute("aria-pressed", this.visible(one));
        key.hidden = hiddenMethods.has(one.method);
      });
      if (!this.drawn) return;
      for (const { one, band, raw, lines, runs } of this.parts) {
        const visible = this.visible(one);
        for (const line of lines) line.visible = visible;
        if (band) band.visible = visible && !this.single;
        raw.visible = visible && this.smooth > 0;
        for (const { seed, line } of runs) line.visible = visible && this.single && !hiddenSeeds.has(seed);
      }
    }

    // All visible series at the place nearest to the pointer, the highest first.
    hover(event) {
      const xs = this.parts.filter(({ one }) => this.visible(one)).flatMap(({ one }) => this.spec.x[one.x]);
      const distance = (x) => Math.abs(this.spec.logX ? Math.log(x / event.x) : x - event.x);
      let nearest = null;
      for (const x of xs) if (x !== null && (nearest === null || distance(x) < distance(nearest))) nearest = x;
      if (nearest === null || !Number.isFinite(event.x)) return this.leave();
      const rows = [];
      for (const { one, now } of this.parts) {
        if (!this.visible(one)) continue;
        const own = this.spec.x[one.x];
        let place = 0;
        own.forEach((x, index) => { if (x !== null && distance(x) <= distance(own[place])) place = index; });
        // A curve that ended long before has nothing to say here.
        const gap = own.length > 1 ? Math.abs(own[Math.min(place + 1, own.length - 1)] - own[Math.max(place - 1, 0)]) : 0;
        if (Math.abs(own[place] - nearest) <= gap && Number.isFinite(now[place])) rows.push({ one, place, value: now[place] });
      }
      rows.sort((first, second) => second.value - first.value);
      this.tip.replaceChildren(element("strong", "", `${this.spec.xLabel} ${this.spec.choices[nearest] ?? shown(nearest)}`), ...rows.slice(0, 14).map((row) => {
        const { one, place, value } = row;
        const band = one.low && !this.smooth ? ` [${shown(one.low[place])} to ${shown(one.high[place])}]` : "";
        return element("div", `c${one.colour}`, element("i"), `${one.name} `, element("b", "", shown(value)), band);
      }));
      this.cross.location = nearest;
      this.tip.hidden = false;
      const [box, host] = [this.card.getBoundingClientRect(), this.host.getBoundingClientRect()];
      const left = event.sx + host.left - box.left;
      const beside = left > box.width / 2 ? left - this.tip.offsetWidth - 16 : left + 16;
      this.tip.style.left = `${Math.max(4, Math.min(beside, box.width - this.tip.offsetWidth - 4))}px`;
      this.tip.style.top = `${host.top - box.top + 8}px`;
    }

    leave() {
      this.tip.hidden = true;
      if (this.cross) this.cross.location = null;
    }
  }

  const charts = new Map();
  for (const figure of document.querySelectorAll("figure.chart")) charts.set(figure, new Chart(figure));
  const near = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const chart = charts.get(target);
      if (isIntersecting && !chart.drawn) chart.draw();
    }
  }, { rootMargin: "400px" });
  for (const figure of charts.keys()) near.observe(figure);
  theme.addEventListener("change", () => { for (const chart of charts.values()) if (chart.drawn) chart.draw(); });
  addEventListener("beforeprint", () => { for (const chart of charts.values()) if (!chart.drawn) chart.draw(); });

  addEventListener("choice", ({ detail }) => {
    const hidden = detail.kind === "method" ? hiddenMethods : hiddenSeeds;
    hidden.clear();
    for (const name of detail.hidden) hidden.add(name);
    for (const chart of charts.values()) {
      // Who chooses among single runs wants to see them.
      if (detail.kind === "seed") chart.separate(true);
      chart.show();
    }
  });
})();
