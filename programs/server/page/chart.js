
/* SPDX-License-Identifier: Apache-2.0
 *
 * chart.js: numbers of things that follow each other, such as versions or steps, as lines or areas over them: in
 * one panel, or in several above each other with one cursor.
 */

const CHART = {left: 64, right: 12, top: 30, gap: 38, bottom: 24, inset: 8};
const MOST_POINTS = 160;

function shape(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) {
    element.setAttribute(key, value);
  }
  if (text !== undefined) {
    element.textContent = text;
  }
  return element;
}

// ---- scales ----

// 1, 2 or 5 times a power of ten, at least `least`.
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least * 0.999);
}

// Bytes are counted in powers of 1024, and so are their steps.
function roundBytes(least) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log(least) / Math.log(1024)));
  const step = roundStep(Math.max(least / unit, 1));
  return step >= 1000 ? 1024 * unit : step * unit;
}

// Powers of ten, of bytes in units of 1024, and where these are few, twice and five times as much too; not more than
// there is room for.
function logTicks(least, most, binary, room) {
  const first = binary ? 0 : Math.floor(Math.log10(least));
  const powers = Array.from({length: 30}, (_, index) => first + index);
  const unit = (power) => binary ? 1024 ** Math.floor(power / 3) * 10 ** (power % 3) : 10 ** power;
  const within = (digits) => powers.flatMap((power) => digits.map((digit) => digit * unit(power)))
    .filter((tick) => tick >= least * 0.8 && tick <= most * 1.1);
  const shown = within([1]).length < 3 ? within([1, 2, 5]) : within([1]);
  const every = Math.ceil(shown.length / room);
  return shown.filter((_, index) => index % every === 0);
}

// What is below a logarithmic scale lies on its end.
function logScale(least, most, low, high, binary) {
  const from = Math.log10(least) - 0.1;
  const to = Math.log10(most) + 0.05;
  const place = (value) => low + (high - low) * Math.max(0, (Math.log10(value) - from) / (to - from));
  const room = Math.floor(Math.abs(high - low) / 20);
  return {place, ticks: logTicks(least, most, binary, room), name: ", logarithmic"};
}

// From zero, or from below it; up to `most`, or to a round number above it.
function linearScale(least, most, low, high, binary) {
  const reach = Math.max(most - least, Number.MIN_VALUE * 1e16);
  const step = binary ? roundBytes(reach / 3) : roundStep(reach / 3);
  const first = Math.floor(least / step + 1e-9);
  const last = Math.max(first + 1, Math.ceil(most / step - 1e-9));
  const ticks = Array.from({length: last - first + 1}, (_, index) => (first + index) * step);
  return {place: (value) => low + (high - low) * (value / step - first) / (last - first), ticks, name: ""};
}

// Linear, or logarithmic where the largest values would hide most of the others. The few smallest do not count: a
// version that changed nothing shall not flatten the rest.
function makeScale(values, low, high, panel) {
  const sorted = values.filter((value) => value > 0).sort((a, b) => a - b);
  const most = Math.max(sorted.at(-1) ?? 1, panel.most ?? 0);
  const least = sorted[Math.floor(sorted.length / 20)] ?? 1;
  const lowest = Math.min(0, ...values);
  if (!panel.linear && lowest === 0 && (panel.logarithmic || most > 12 * least)) {
    return logScale(least, most, low, high, panel.binary);
  }
  const highest = sorted.length > 0 || lowest === 0 ? most : 0;
  return linearScale(lowest, highest, low, high, panel.binary);
}

function tickBytes(value) {
  return value === 0 ? "0" : bytes(value).replace(/\.0+ /, " ").replace(/(\.\d)0 /, "$1 ");
}

// ---- drawing ----

function drawAxis(group, scale, width, format) {
  for (const tick of scale.ticks) {
    const y = Math.round(scale.place(tick)) + 0.5;
    group.append(shape("line", {class: tick === 0 ? "axis" : "grid", x1: CHART.left, x2: width - CHART.right, y1: y, y2: y}));
    group.append(shape("text", {x: CHART.left - 8, y: y + 4, "text-anchor": "end"}, format(tick)));
  }
}

function drawPlaces(group, first, last, place, width, bottom) {
  const step = Math.max(1, roundStep(Math.max(1, (last - first) / Math.max(2, width / 110))));
  group.append(shape("line", {class: "axis", x1: CHART.left, x2: width - CHART.right, y1: bottom + 0.5, y2: bottom + 0.5}));
  for (let tick = Math.ceil(first / step) * step; tick <= last; tick += step) {
    const x = place(tick);
    group.append(shape("line", {class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 4}));
    group.append(shape("text", {x, y: bottom + 18, "text-anchor": "middle"}, count(tick)));
  }
}

function pathOf(points) {
  return points.map(([x, y], index) => (index === 0 ? "M" : "L") + x.toFixed(1) + " " + y.toFixed(1)).join("");
}

function drawLine(group, points, series) {
  const name = series.colour + (series.faint ? " faint" : "");
  group.append(shape("path", {class: "line " + name, "data-series": series.name, d: pathOf(points)}));
  if (points.length <= MOST_POINTS && !series.smooth) {
    for (const [x, y] of points) {
      group.append(shape("circle", {class: "point " + name, "data-series": series.name, cx: x.toFixed(1), cy: y.toFixed(1),
        r: points.length > 80 ? 1.8 : 2.6}));
    }
  }
}

function drawArea(group, upper, lower, series) {
  const d = upper.length > 0 ? pathOf(upper.concat([...lower].reverse())) + "Z" : "";
  group.append(shape("path", {class: "area " + series.colour, "data-series": series.name, d}));
}

// ---- a chart ----

// Of each panel: `title`; `format` of its values, for the axis; `series`, each with `name`, `label`, `colour` (a class
// of the style) and `value`, a function of the item, its place and all items, null where there is none; and perhaps
// `binary` (it counts bytes), `linear` or `logarithmic` (always so), `most` (at least up to there) and `stacked`. A
// series may be `faint` (drawn pale) or `smooth` (without points).
class Chart {
  // `options`: `key`, the number of an item on the common axis; `panels`, or a function of the items that makes them;
  // `readout`, the elements that tell of an item; `empty`, what is said when there are none; perhaps `decorate`, which
  // draws more, and `describe`, the text for who cannot see it.
  constructor(svg, readout, options) {
    Object.assign(this, {svg, readout, options, items: [], chosen: null, drawn: null});
    svg.addEventListener("pointermove", (event) => this.pointAt(event));
    svg.addEventListener("pointerdown", (event) => this.pointAt(event));
    svg.addEventListener("pointerleave", () => this.choose(null));
    svg.addEventListener("keydown", (event) => this.chooseByKey(event));
    // Read aloud while somebody moves through the items, and not whenever there is a new one.
    svg.addEventListener("focus", () => readout.setAttribute("aria-live", "polite"));
    svg.addEventListener("blur", () => {
      readout.setAttribute("aria-live", "off");
      this.choose(null);
    });
    new ResizeObserver(() => this.draw()).observe(svg.parentElement);
  }

  show(items) {
    this.items = items;
    this.draw();
  }

  // Panels with their place, their values and their scale.
  layPanels() {
    let top = CHART.top;
    const panels = typeof this.options.panels === "function" ? this.options.panels(this.items) : this.options.panels;
    return panels.map((panel) => {
      const bottom = top + panel.height;
      const values = panel.series.map((series) => this.items.map(series.value));
      const levels = panel.stacked ? stackUp(values) : values;
      const scale = makeScale(levels.flat().filter((value) => value !== null), bottom, top, panel);
      const laid = {...panel, top, bottom, values, levels, scale};
      top = bottom + CHART.gap;
      return laid;
    });
  }

  draw() {
    const width = Math.max(280, this.svg.parentElement.clientWidth);
    this.svg.replaceChildren();
    this.drawn = null;
    const panels = this.layPanels();
    const height = panels.at(-1).bottom + CHART.bottom;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.style.height = height + "px";
    if (this.items.length === 0) {
      this.svg.append(shape("text", {x: width / 2, y: height / 2, "text-anchor": "middle"}, this.options.empty));
      setText(this.readout, "\u00a0");
      return;
    }
    this.drawn = {width, panels, place: this.makePlace(width)};
    this.svg.append(this.drawPanels(), this.makeCursor());
    if (this.options.describe) {
      this.svg.setAttribute("aria-label", this.options.describe(this.items));
    }
    this.drawCursor();
  }

  makePlace(width) {
    const first = this.options.key(this.items[0]);
    const distance = Math.max(1, this.options.key(this.items.at(-1)) - first);
    const room = width - CHART.left - CHART.right - 2 * CHART.inset;
    return (key) => CHART.left + CHART.inset + room * (key - first) / distance;
  }

  drawPanels() {
    const {width, panels, place} = this.drawn;
    const {key} = this.options;
    const group = shape("g", {});
    panels.forEach((panel) => {
      drawAxis(group, panel.scale, width, panel.format);
      group.append(shape("text", {class: "title", x: 0, y: panel.top - 14}, (panel.title + panel.scale.name).replace(/^, /, "")));
    });
    drawPlaces(group, key(this.items[0]), key(this.items.at(-1)), place, width, panels.at(-1).bottom);
    this.options.decorate?.(group, this);
    panels.forEach((panel) => this.drawSeries(group, panel));
    return group;
  }

  drawSeries(group, panel) {
    const points = panel.levels.map((levels) => this.items
      .map((item, index) => levels[index] === null ? null : [this.drawn.place(this.options.key(item)), panel.scale.place(levels[index])])
      .filter((point) => point !== null));
    panel.series.forEach((series, index) => {
      if (panel.stacked) {
        const floor = points[index].map(([x]) => [x, panel.scale.place(0)]);
        drawArea(group, points[index], index > 0 ? points[index - 1] : floor, series);
      } else {
        drawLine(group, points[index], series);
      }
    });
  }

  // ---- the cursor ----

  makeCursor() {
    const {panels} = this.drawn;
    const cursor = shape("g", {visibility: "hidden"});
    cursor.append(shape("line", {class: "cursor", y1: panels[0].top, y2: panels.at(-1).bottom}));
    for (const panel of panels) {
      for (const series of panel.series) {
        cursor.append(shape("circle", {class: "cursor-point " + series.colour, r: panel.stacked ? 0 : 5}));
      }
    }
    this.drawn.cursor = cursor;
    return cursor;
  }

  moveCursor(index) {
    const {panels, place, cursor} = this.drawn;
    const x = place(this.options.key(this.items[index]));
    const [line, ...points] = cursor.children;
    line.setAttribute("x1", Math.round(x) + 0.5);
    line.setAttribute("x2", Math.round(x) + 0.5);
    const levels = panels.flatMap((panel) => panel.levels.map((level) => [panel.scale, level[index]]));
    levels.forEach(([scale, level], at) => {
      points[at].setAttribute("cx", x);
      points[at].setAttribute("cy", level === null ? 0 : scale.place(level));
      points[at].setAttribute("visibility", level === null ? "hidden" : "inherit");
    });
    cursor.setAttribute("visibility", "visible");
  }

  // The chosen item, or the newest one without a cursor.
  drawCursor() {
    if (this.drawn === null) {
      return;
    }
    const index = this.items.findIndex((item) => this.options.key(item) === this.chosen);
    if (index < 0) {
      this.drawn.cursor.setAttribute("visibility", "hidden");
    } else {
      this.moveCursor(index);
    }
    const shown = index < 0 ? this.items.length - 1 : index;
    this.readout.replaceChildren(...this.options.readout(this.items[shown], shown, this));
  }

  choose(key) {
    this.chosen = key;
    this.drawCursor();
  }

  pointAt(event) {
    if (this.drawn === null) {
      return;
    }
    const box = this.svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * this.drawn.width / box.width;
    const distance = (item) => Math.abs(this.drawn.place(this.options.key(item)) - x);
    this.choose(this.options.key(this.items.reduce((best, item) => distance(item) < distance(best) ? item : best)));
  }

  chooseByKey(event) {
    if (this.drawn === null || !["ArrowLeft", "ArrowRight", "Home", "End", "Escape"].includes(event.key)) {
      return;
    }
    const last = this.items.length - 1;
    const at = this.items.findIndex((item) => this.options.key(item) === this.chosen);
    const to = {ArrowLeft: at < 0 ? last : at - 1, ArrowRight: at < 0 ? last : at + 1, Home: 0, End: last}[event.key];
    this.choose(to === undefined ? null : this.options.key(this.items[Math.min(last, Math.max(0, to))]));
    event.preventDefault();
  }
}

// Each series on top of those before it; what is missing is nothing.
function stackUp(values) {
  let below = values[0]?.map(() => 0) ?? [];
  return values.map((level) => {
    below = level.map((value, index) => below[index] + (value ?? 0));
    return below;
  });
}

// What a chart shows of an item: each series by its label, in its colour.
function readSeries(chart, index) {
  return chart.drawn.panels.flatMap((panel) => panel.series.map((series, at) => [series, panel, panel.values[at][index]]))
    .filter(([series, , value]) => value !== null && series.label !== undefined)
    .map(([series, panel, value]) => piece("span", series.colour, series.label + " " + (panel.tell ?? panel.format)(value)));
}
