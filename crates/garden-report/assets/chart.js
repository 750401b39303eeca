/* Charts: with `words.js` and `parts.js` before it, drawChart(element, data) draws the JSON of a `Chart` (see src/chart.rs) as SVG and answers with
 * { update(data), view(stretch), point(place), print(width), axis() } for a page that goes on living.
 *
 * Self-standing: no library, no network, no markup from data (text reaches the page as text nodes only), and no style
 * attributes, so that a strict content security policy holds. Colours are classes; the page's style sheet has them.
 *
 * One cursor reads all curves at a sample that was really taken. It follows the pointer, a finger or the arrow keys;
 * dragging zooms, Escape or a double click shows everything again, and the legend hides and shows what is drawn. */
const drawChart = (() => {
  const { svg, html, known, clamp, path, nearest, expected } = chartParts;
  const { amountWords, exactWords, placeName, timeUnit, valueTicks, ratioTicks, placeTicks } = chartWords;
  const COLOURS = 8;
  /** A limit this many times above everything else would squeeze the rest to the ground: it is only named then. */
  const HEADROOM = 2.1;
  const NARROW = 560;
  const LANE = 16;
  const EDGE = 4;
  /** Labels that are closer than this lie over each other. */
  const LABEL = 14;

  /* ---- One chart ---- */

  return (element, firstData, listener = {}) => {
    let data = firstData;
    let view = null;
    let isFitted = null;
    let isLinear = false;
    let cursor = null;
    let drag = null;
    let layout = null;
    let model = null;
    let paper = 0;
    const hidden = new Set();

    const isLogarithmic = () => data.scale === "logarithmic" && !isLinear;
    /** A ratio to zero has no height. */
    const isDrawn = (value) => known(value) && !(isLogarithmic() && value <= 0);

    const bar = html("div", "chart-bar", "", element);
    const legend = html("div", "chart-legend", "", bar);
    legend.setAttribute("role", "group");
    legend.setAttribute("aria-label", "Legend");
    const stage = html("div", "chart-stage", "", element);
    stage.tabIndex = 0;
    stage.setAttribute("role", "application");
    stage.setAttribute("aria-roledescription", "chart");
    const picture = svg("svg", { class: "chart-picture", "aria-hidden": "true" }, stage);
    const tip = html("div", "chart-tip", "", stage);
    tip.hidden = true;
    const tools = html("div", "chart-tools", "", bar);
    const spoken = html("p", "unseen", "", element);
    spoken.setAttribute("aria-live", "polite");

    const button = (text, label, action) => {
      const node = html("button", "tool", text, tools);
      node.type = "button";
      node.setAttribute("aria-label", label);
      node.title = label;
      node.addEventListener("click", action);
      return node;
    };
    const fitButton = button("From zero", "Start the vertical axis at zero, or near the lowest value", () => {
      if (data.scale === "logarithmic") isLinear = !isLinear; else isFitted = !isFitted;
      draw();
    });
    button("\u2212", "Zoom out", () => zoomBy(2));
    button("+", "Zoom in", () => zoomBy(0.5));
    const resetButton = button("Show all", "Show everything again", () => setView(null));

    /** Prepares data that drawing needs again and again: colours, pieces and sums. */
    const prepare = () => {
      let colour = 0;
      const tone = (curve) => {
        if (curve.tone !== "next") return curve.tone;
        colour += 1;
        return `c${((colour - 1) % COLOURS) + 1}`;
      };
      const curves = data.curves.map((curve) => ({ ...curve, colour: tone(curve) }));
      const starts = [0, ...data.breaks, data.places.length];
      const pieces = [];
      for (let n = 1; n < starts.length; n += 1) if (starts[n] > starts[n - 1]) pieces.push([starts[n - 1], starts[n]]);
      const foot = data.marks.some((mark) => ["diamond", "dot", "bar"].includes(mark.shape));
      model = { curves, pieces, foot, full: [data.axis.from, data.axis.to] };
      if (isFitted === null) isFitted = data.base === "fitted";
      stage.setAttribute(
        "aria-label",
        `${data.title} by ${data.axis.name}. Arrow keys move a cursor that reads out values, plus and minus zoom, Escape shows everything.`,
      );
    };

    const shown = (name) => !hidden.has(name);
    const range = () => view || model.full;
    const isZoomed = () => view !== null;
    const shownCurves = () => model.curves.filter((curve) => shown(curve.name));
    const shownStack = () => shownCurves().filter((curve) => curve.role === "stacked");

    /** The tops of the stacked curves: one list per curve, the one below it first. */
    const stackTops = () => {
      const stack = shownStack();
      let below = new Array(data.places.length).fill(0);
      return stack.map((curve) => {
        const base = below;
        const top = base.map((sum, n) => sum + (known(curve.values[n]) ? curve.values[n] : 0));
        below = top;
        return { curve, base, top };
      });
    };

    /** The range of values in view. */
    const valueRange = (tops) => {
      const [from, to] = range();
      let low = Infinity;
      let high = -Infinity;
      const see = (value) => {
        if (isDrawn(value)) { low = Math.min(low, value); high = Math.max(high, value); }
      };
      const inView = (place) => place >= from && place <= to;
      const stack = tops.length ? tops[tops.length - 1].top : null;
      const anyStacked = (n) => tops.some(({ curve }) => known(curve.values[n]));
      data.places.forEach((place, n) => {
        if (!inView(place)) return;
        if (stack && anyStacked(n)) see(stack[n]);
        for (const curve of shownCurves()) if (curve.role !== "stacked") see(curve.values[n]);
      });
      if (!known(low)) { low = isLogarithmic() ? 0.1 : 0; high = 1; }
      const dataHigh = high;
      for (const outlook of data.outlooks) {
        if (!shown(outlook.name)) continue;
        for (const point of outlook.points) if (inView(point[0])) see(Math.min(point[2], HEADROOM * dataHigh));
      }
      for (const level of data.levels) {
        if (shown(level.name) && level.value <= HEADROOM * dataHigh && !(isZoomed() && level.value > 1.25 * high)) see(level.value);
      }
      if (isLogarithmic()) {
        const room = Math.max(high / low, 1.1) ** 0.06;
        return [low / room, high * room];
      }
      const bottom = isFitted ? low : Math.min(0, low);
      // Where everything is zero there is nothing to fit an axis to.
      const span = Math.max(high - bottom, Math.abs(high) * 1e-3, high === 0 ? 1 : 1e-12);
      return [isFitted && low > 0 ? Math.max(0, bottom - 0.06 * span) : bottom, high + 0.06 * span];
    };

    const measure = (ticks, width) => {
      const isNarrow = width < NARROW;
      const height = data.size === "large" ? (isNarrow ? 320 : 420) : (isNarrow ? 220 : 240);
      const longest = ticks.reduce((most, tick) => Math.max(most, tick[1].length), 1);
      const left = Math.ceil(longest * (isNarrow ? 6.2 : 6.9)) + 14;
      const top = data.bands.length || data.marks.some((mark) => mark.shape === "pin" || mark.shape === "line") ? 34 : 12;
      return { width, height, left, right: 12, top, bottom: 40, isNarrow };
    };

    const draw = () => {
      if (!element.isConnected) return;
      const width = Math.max(240, Math.floor(paper || stage.clientWidth || 600));
      const tops = stackTops();
      const [low, high] = valueRange(tops);
      const most = data.size === "large" ? 7 : 4;
      const guess = isLogarithmic() ? ratioTicks(low, high, data.unit, most) : valueTicks(low, high, data.unit, most);
      const size = measure(guess, width);
      const [from, to] = range();
      const right = size.width - size.right;
      const floor = size.height - size.bottom - (model.foot ? LANE : 0);
      const x = (place) => size.left + ((place - from) / (to - from)) * (right - size.left);
      const height = isLogarithmic() ? Math.log : (value) => value;
      const y = (value) => floor - ((height(value) - height(low)) / (height(high) - height(low))) * (floor - size.top);
      const place = (pixel) => from + ((pixel - size.left) / (right - size.left)) * (to - from);
      layout = { ...size, right, floor, x, y, place, from, to, low, high, tops };
      picture.replaceChildren();
      picture.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
      picture.setAttribute("width", size.width);
      picture.setAttribute("height", size.height);
      const clip = svg("clipPath", { id: `clip-${chartId}` }, svg("defs", {}, picture));
      // A little more than the plot, so that dots and lines at its edge are whole.
      svg("rect", { x: size.left - EDGE, y: size.top - EDGE, width: right - size.left + 2 * EDGE, height: Math.max(1, floor - size.top + EDGE) }, clip);
      drawAxes(guess);
      drawBands();
      const inside = svg("g", { "clip-path": `url(#clip-${chartId})` }, picture);
      drawOutlooks(inside);
      drawStack(inside);
      drawCurves(inside);
      drawLevels();
      drawMarks();
      layout.cursor = svg("g", { class: "cursor" }, picture);
      layout.select = svg("rect", { class: "selection", y: size.top, height: floor - size.top, width: 0 }, picture);
      resetButton.hidden = !isZoomed();
      fitButton.textContent = isFitted || isLogarithmic() ? "From zero" : data.scale === "logarithmic" ? "Ratios" : "Fit height";
      showCursor(false);
    };

    const text = (parent, x, y, words, attributes = {}) => {
      const node = svg("text", { x: x.toFixed(1), y: y.toFixed(1), ...attributes }, parent);
      node.textContent = words;
      return node;
    };

    const drawAxes = (ticks) => {
      const { x, y, left, right, height, isNarrow, from, to } = layout;
      const values = svg("g", { class: "axis axis-y" }, picture);
      for (const [value, words] of ticks) {
        svg("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }, values);
        text(values, left - 8, y(value) + 4, words, { "text-anchor": "end" });
      }
      const places = svg("g", { class: "axis axis-x" }, picture);
      const foot = height - layout.bottom;
      svg("line", { class: "base", x1: left, x2: right, y1: foot, y2: foot }, places);
      for (const [value, words] of placeTicks(from, to, data.axis, Math.max(2, Math.floor((right - left) / (isNarrow ? 64 : 90))))) {
        svg("line", { class: "base", x1: x(value), x2: x(value), y1: foot, y2: foot + 5 }, places);
        const half = words.length * 3.4;
        text(places, clamp(x(value), left - 8 + half, right + 8 - half), foot + 18, words, { "text-anchor": "middle" });
      }
      const unit = data.axis.kind === "time" ? ` (${{ s: "s", min: "min:s", h: "h:min" }[timeUnit(data.axis.to - Math.min(0, data.axis.from))]})` : "";
      text(places, right, foot + 34, `${data.axis.name}${unit}`, { class: "axis-name", "text-anchor": "end" });
    };

    const drawBands = () => {
      if (!data.bands.length || !shown("phases")) return;
      const { x, left, right, top, floor } = layout;
      const group = svg("g", { class: "bands" }, picture);
      for (const band of data.bands) {
        const from = clamp(x(band.from), left, right);
        const to = clamp(x(band.to), left, right);
        if (to - from < 0.5) continue;
        const cell = svg("g", { class: `band ${band.mood}`, "data-band": band.name }, group);
        svg("rect", { class: "shade", x: from, y: top, width: to - from, height: floor - top }, cell);
        svg("rect", { class: "strip", x: from, y: top - 4, width: to - from, height: 4 }, cell);
        if (to - from > band.name.length * 6.5 + 8) {
          text(cell, (from + to) / 2, floor - 8, band.name, { class: "band-name", "text-anchor": "middle" });
        }
      }
    };

    /** The samples of a piece that are in view, and one more on either side. */
    const visible = ([start, end]) => {
      const { from, to } = layout;
      let first = start;
      while (first + 1 < end && data.places[first + 1] < from) first += 1;
      let last = end - 1;
      while (last > first && data.places[last - 1] > to) last -= 1;
      return [first, last + 1];
    };

    const drawStack = (parent) => {
      const { x, y, tops } = layout;
      for (const { curve, base, top } of tops) {
        const group = svg("g", { class: `curve stacked ${curve.colour}`, "data-curve": curve.name }, parent);
        let area = "";
        const line = [];
        for (const piece of model.pieces) {
          const [first, end] = visible(piece);
          const at = [];
          for (let n = first; n < end; n += 1) if (known(curve.values[n])) at.push(n);
          if (!at.length) continue;
          const upper = at.map((n) => [x(data.places[n]), y(top[n])]);
          const lower = at.map((n) => [x(data.places[n]), y(base[n])]).reverse();
          area += `${path([...upper, ...lower])}Z`;
          line.push(...upper, null);
        }
        svg("path", { class: "area", d: area }, group);
        svg("path", { class: "line", d: path(line) }, group);
      }
    };

    const drawCurves = (parent) => {
      const { x, y, low } = layout;
      // What matters less lies below.
      const isMuted = (curve) => curve.colour === "muted";
      for (const curve of [...shownCurves()].sort((a, b) => isMuted(b) - isMuted(a))) {
        if (curve.role === "stacked") continue;
        const group = svg("g", { class: `curve ${curve.role} ${curve.colour}`, "data-curve": curve.name }, parent);
        const line = [];
        let area = "";
        for (const piece of model.pieces) {
          const [first, end] = visible(piece);
          const points = [];
          for (let n = first; n < end; n += 1) {
            if (isDrawn(curve.values[n])) points.push([x(data.places[n]), y(curve.values[n])]);
          }
          if (!points.length) continue;
          line.push(...points, null);
          const ground = y(Math.max(low, Math.min(0, low)));
          if (curve.role === "area") {
            area += `${path([[points[0][0], ground], ...points, [points[points.length - 1][0], ground]])}Z`;
          }
          // A line needs two points to be seen.
          if (curve.role === "points" || curve.role === "dotted" || points.length === 1) {
            for (const [px, py] of points) svg("circle", { class: "dot", cx: px.toFixed(1), cy: py.toFixed(1), r: 2.6 }, group);
          }
        }
        if (area) svg("path", { class: "area", d: area }, group);
        if (curve.role !== "points") svg("path", { class: "line", d: path(line) }, group);
      }
    };

    const drawOutlooks = (parent) => {
      const { x, y } = layout;
      data.outlooks.forEach((outlook, index) => {
        if (!shown(outlook.name)) return;
        const group = svg("g", { class: `outlook o${(index % 2) + 1}`, "data-outlook": outlook.name }, parent);
        const upper = outlook.points.map((point) => [x(point[0]), y(point[3])]);
        const lower = outlook.points.map((point) => [x(point[0]), y(point[1])]).reverse();
        svg("path", { class: "area", d: `${path([...upper, ...lower])}Z` }, group);
        svg("path", { class: "line", d: path(outlook.points.map((point) => [x(point[0]), y(point[2])])) }, group);
      });
    };

    const drawLevels = () => {
      const { y, left, right, top, floor } = layout;
      // On the right, unless what is expected may run through it there.
      const sides = [[left + 6, {}], [right - 6, { "text-anchor": "end" }]];
      if (!data.outlooks.length) sides.reverse();
      const taken = [];
      /** Writes a label at the first of these heights that is free, on one side or else the other. */
      const label = (group, words, heights) => {
        const isFree = ([side, , height]) => taken.every(([other, at]) => other !== side || Math.abs(at - height) >= LABEL);
        const choices = sides.flatMap(([side, anchor]) => heights.map((height) => [side, anchor, height]));
        const [side, anchor, height] = choices.find(isFree) || choices[0];
        taken.push([side, height]);
        text(group, side, height, words, anchor);
      };
      for (const level of data.levels) {
        if (!shown(level.name) || !isDrawn(level.value)) continue;
        const words = `${level.name} ${amountWords(level.value, data.unit)}`;
        const group = svg("g", { class: `level ${level.kind}`, "data-level": level.name }, picture);
        const at = y(level.value);
        if (at >= top && at <= floor) {
          svg("line", { x1: left, x2: right, y1: at, y2: at }, group);
          label(group, words, at - 6 < top + 8 ? [at + 14] : [at - 6, at + 14]);
        } else if (at < top) {
          label(group, `${words} \u2191`, [top + 15, top + 15 + LABEL]);
        }
      }
    };

    const drawMarks = () => {
      const { x, left, right, top, floor } = layout;
      const taken = [];
      const isFree = (from, to) => from >= left - 8 && to <= right + 10 && taken.every(([a, b]) => to < a || from > b);
      const order = { pin: 0, line: 1 };
      const sorted = [...data.marks].sort((a, b) => (order[a.shape] ?? 2) - (order[b.shape] ?? 2));
      const group = svg("g", { class: "marks" }, picture);
      for (const mark of sorted) {
        const at = x(mark.at);
        const [from, to] = (mark.stretch || [mark.at, mark.at]).map(x);
        if (!shown(mark.name) || to < left - 0.5 || from > right + 0.5) continue;
        const node = svg("g", { class: `mark ${mark.shape}`, "data-mark": mark.name, "data-at": mark.at }, group);
        if (mark.shape === "pin" || mark.shape === "line") {
          if (mark.stretch && to > from) {
            const [a, b] = [clamp(from, left, right), clamp(to, left, right)];
            svg("rect", { class: "stretch", x: a, y: top, width: b - a, height: floor - top }, node);
          }
          if (at < left - 0.5 || at > right + 0.5) continue;
          svg("line", { x1: at, x2: at, y1: top - 4, y2: floor }, node);
          const words = mark.label || mark.name;
          const half = words.length * 3.5 + 3;
          const centre = clamp(at, left + half - 8, right - half + 8);
          if (isFree(centre - half, centre + half)) {
            taken.push([centre - half, centre + half]);
            text(node, centre, top - 12, words, { "text-anchor": "middle" });
          }
        } else {
          const middle = floor + LANE / 2 + 1;
          if (mark.shape === "bar") {
            const [a, b] = [clamp(from, left, right), clamp(to, left, right)];
            svg("rect", { x: a - 0.75, y: middle - 4, width: Math.max(1.5, b - a), height: 8 }, node);
          } else if (at >= left && at <= right) {
            const r = mark.shape === "dot" ? 2.5 : 4.5;
            const shape = mark.shape === "dot"
              ? svg("circle", { cx: at, cy: middle, r }, node)
              : svg("path", { d: `M${at} ${middle - r}L${at + r} ${middle}L${at} ${middle + r}L${at - r} ${middle}Z` }, node);
            shape.setAttribute("class", "glyph");
          }
        }
      }
    };

    /* ---- Legend ---- */

    const drawLegend = () => {
      legend.replaceChildren();
      const entry = (name, className, title) => {
        const node = html("button", `key ${className}`, "", legend);
        node.type = "button";
        node.dataset.key = name;
        node.setAttribute("aria-pressed", String(shown(name)));
        html("span", "swatch", "", node);
        html("span", "", title, node);
        node.addEventListener("click", () => {
          if (!hidden.delete(name)) hidden.add(name);
          node.setAttribute("aria-pressed", String(shown(name)));
          draw();
        });
      };
      for (const curve of model.curves) entry(curve.name, `${curve.role} ${curve.colour}`, curve.name);
      data.outlooks.forEach((outlook, index) => entry(outlook.name, `outlook o${(index % 2) + 1}`, outlook.name));
      if (data.bands.length) entry("phases", "phases", "phases");
      const names = new Map();
      for (const mark of data.marks) names.set(mark.name, [mark.shape, (names.get(mark.name)?.[1] || 0) + 1]);
      for (const [name, [shape, count]] of names) entry(name, `mark ${shape}`, count > 1 ? `${name} (${count})` : name);
      for (const level of data.levels) entry(level.name, `level ${level.kind}`, level.name);
    };

    /* ---- Cursor ---- */

    /** Everything that the cursor tells: a place, and rows of name, amount and remark. */
    const reading = () => {
      const n = cursor.index;
      const place = n === null ? cursor.place : data.places[n];
      const rows = [];
      if (n !== null) {
        let sum = 0;
        let stacked = 0;
        for (const curve of shownCurves()) {
          const value = curve.values[n];
          if (!known(value)) continue;
          if (curve.role === "stacked") { sum += value; stacked += 1; }
          rows.push({ colour: `${curve.role} ${curve.colour}`, name: curve.name, value });
        }
        if (stacked > 1) rows.push({ colour: "sum", name: "together", value: sum });
      } else {
        data.outlooks.forEach((outlook, index) => {
          const values = shown(outlook.name) ? expected(outlook, place) : null;
          if (values) rows.push({ colour: `outlook o${(index % 2) + 1}`, name: outlook.name, value: values[1], between: [values[0], values[2]] });
        });
      }
      const near = (mark) => {
        const [from, to] = (mark.stretch && mark.shape === "bar" ? mark.stretch : [mark.at, mark.at]).map(layout.x);
        const at = layout.x(place);
        return shown(mark.name) && at > from - 5 && at < to + 5;
      };
      const remarks = data.marks.filter(near).map((mark) => mark.label || mark.name);
      const band = data.bands.find((found) => place >= found.from && place <= found.to);
      if (band && shown("phases")) remarks.unshift(band.name);
      return { place, rows, remarks: [...new Set(remarks)].slice(0, 4) };
    };

    const showCursor = (isSpoken) => {
      layout.cursor.replaceChildren();
      tip.hidden = cursor === null;
      if (cursor === null) return;
      const { place, rows, remarks } = reading();
      const { x, y, top, floor, left, right, tops } = layout;
      const at = x(place);
      if (at < left - 1 || at > right + 1) { tip.hidden = true; return; }
      svg("line", { class: "hair", x1: at, x2: at, y1: top, y2: floor }, layout.cursor);
      const dot = (value, colour) => {
        const cy = y(value);
        if (cy >= top - 1 && cy <= floor + 1) svg("circle", { class: `dot ${colour}`, cx: at, cy, r: 4 }, layout.cursor);
      };
      if (cursor.index !== null) {
        for (const { curve, top: sums } of tops) if (known(curve.values[cursor.index])) dot(sums[cursor.index], curve.colour);
        for (const curve of shownCurves()) {
          if (curve.role !== "stacked" && known(curve.values[cursor.index])) dot(curve.values[cursor.index], curve.colour);
        }
      }
      tip.replaceChildren();
      const head = html("p", "tip-place", placeName(place, data.axis), tip);
      if (remarks.length) html("span", "tip-remark", remarks.join(" · "), head);
      const list = html("div", "tip-rows", "", tip);
      for (const row of rows) {
        const line = html("div", `tip-row ${row.colour}`, "", list);
        html("span", "swatch", "", line);
        html("span", "tip-name", row.name, line);
        html("b", "", amountWords(row.value, data.unit), line);
        const remark = row.between
          ? `${amountWords(row.between[0], data.unit)} to ${amountWords(row.between[1], data.unit)}`
          : exactWords(row.value, data.unit);
        html("small", "", remark, line);
      }
      const room = stage.clientWidth;
      const wide = tip.offsetWidth;
      const scale = room / layout.width;
      const beside = at * scale + 16 + wide <= room ? at * scale + 16 : at * scale - 16 - wide;
      tip.style.left = `${clamp(beside, 0, Math.max(0, room - wide))}px`;
      tip.style.top = `${top + 6}px`;
      if (isSpoken) {
        const words = rows.map((row) => `${row.name} ${amountWords(row.value, data.unit)}`);
        spoken.textContent = [placeName(place, data.axis), ...remarks, ...words].join(", ");
      }
    };

    const setCursor = (place, isSpoken = false, isTold = true) => {
      if (place === null || !data.places.length) {
        cursor = null;
      } else {
        const index = nearest(data.places, model.pieces, place);
        const last = Math.max(...model.pieces.map(([, end]) => data.places[end - 1]));
        const isAhead = data.outlooks.length > 0 && place > last + (layout.to - layout.from) * 0.01;
        // Ahead of all samples there are only whole steps.
        const ahead = data.axis.kind !== "time" && layout.to - layout.from > 20 ? Math.round(place) : place;
        cursor = isAhead ? { index: null, place: ahead } : { index, place: data.places[index] };
      }
      showCursor(isSpoken);
      if (isTold && listener.pointed) listener.pointed(cursor ? cursor.place : null);
    };

    const stepCursor = (by) => {
      const last = data.places.length - 1;
      if (last < 0) return;
      const now = cursor === null ? (by > 0 ? -1 : last + 1) : cursor.index ?? last + 1;
      const index = clamp(now + by, 0, last);
      cursor = { index, place: data.places[index] };
      const [from, to] = range();
      if (isZoomed() && (cursor.place < from || cursor.place > to)) {
        const half = (to - from) / 2;
        view = [cursor.place - half, cursor.place + half];
        draw();
      }
      showCursor(true);
      if (listener.pointed) listener.pointed(cursor.place);
    };

    /* ---- Zoom ---- */

    const setView = (next, isTold = true) => {
      const [from, to] = model.full;
      const least = (to - from) * 1e-4;
      view = next && next[1] - next[0] > least ? [Math.max(from, next[0]), Math.min(to, next[1])] : null;
      if (view && view[0] <= from && view[1] >= to) view = null;
      draw();
      if (isTold && listener.viewed) listener.viewed(view);
    };

    const zoomBy = (factor) => {
      const [from, to] = range();
      const centre = cursor && cursor.place >= from && cursor.place <= to ? cursor.place : (from + to) / 2;
      setView([centre - (centre - from) * factor, centre + (to - centre) * factor]);
    };

    const pixel = (event) => {
      const box = picture.getBoundingClientRect();
      return ((event.clientX - box.left) / box.width) * layout.width;
    };

    stage.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      // A finger reads and scrolls; zooming by touch is what the buttons are for.
      if (event.pointerType === "touch") { setCursor(layout.place(clamp(pixel(event), layout.left, layout.right))); return; }
      drag = { from: pixel(event), to: pixel(event) };
      stage.setPointerCapture(event.pointerId);
    });
    stage.addEventListener("pointermove", (event) => {
      const at = pixel(event);
      if (drag) {
        drag.to = at;
        const [a, b] = [drag.from, drag.to].map((end) => clamp(end, layout.left, layout.right)).sort((p, q) => p - q);
        layout.select.setAttribute("x", a);
        layout.select.setAttribute("width", b - a);
      }
      setCursor(layout.place(clamp(at, layout.left, layout.right)));
    });
    const drop = (event) => {
      if (!drag) return;
      const [a, b] = [drag.from, pixel(event)].map((end) => layout.place(clamp(end, layout.left, layout.right))).sort((p, q) => p - q);
      const isMeant = Math.abs(drag.from - pixel(event)) > 6;
      drag = null;
      layout.select.setAttribute("width", 0);
      if (isMeant) setView([a, b]);
    };
    stage.addEventListener("pointerup", drop);
    stage.addEventListener("pointercancel", () => { drag = null; layout.select.setAttribute("width", 0); });
    stage.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") setCursor(null); });
    stage.addEventListener("dblclick", () => setView(null));
    stage.addEventListener("blur", () => setCursor(null));
    stage.addEventListener("keydown", (event) => {
      const far = Math.max(1, Math.round(data.places.length / 20));
      const actions = {
        ArrowLeft: () => stepCursor(event.shiftKey ? -far : -1),
        ArrowRight: () => stepCursor(event.shiftKey ? far : 1),
        PageUp: () => stepCursor(-far),
        PageDown: () => stepCursor(far),
        Home: () => stepCursor(-Infinity),
        End: () => stepCursor(Infinity),
        "+": () => zoomBy(0.5),
        "=": () => zoomBy(0.5),
        "-": () => zoomBy(2),
        0: () => setView(null),
        Escape: () => { if (isZoomed()) setView(null); else setCursor(null); },
      };
      if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      actions[event.key]();
    });

    drawChart.count = (drawChart.count || 0) + 1;
    const chartId = drawChart.count;
    prepare();
    drawLegend();
    draw();
    let drawnWidth = stage.clientWidth;
    new ResizeObserver(() => {
      if (stage.clientWidth === drawnWidth) return;
      drawnWidth = stage.clientWidth;
      draw();
    }).observe(stage);

    return {
      /** Draws other data in place of what is there; zoom and what is hidden stay. */
      update(next) {
        data = next;
        cursor = null;
        prepare();
        drawLegend();
        draw();
      },
      /** Shows a stretch of the axis, or everything; nobody is told. */
      view: (stretch) => setView(stretch, false),
      /** Puts the cursor at a place, or takes it away; nobody is told. */
      point: (place) => setCursor(place, false, false),
      /** Shows everything, without a cursor, at a width that suits paper; 0 goes back to the window's. */
      print(width) {
        paper = width;
        if (width) { cursor = null; view = null; }
        draw();
      },
      axis: () => data.axis,
    };
  };
})();
