
/* SPDX-License-Identifier: Apache-2.0
 *
 * report.js: shows the run that the report holds as JSON (demo_report.c).
 */

const STRIP_CELLS = 96;

const report = JSON.parse(by("data").textContent);

function times(value) {
  return value === null ? "–" : short(Number(value.toPrecision(3))) + "×";
}

function known(value, format) {
  return value === null ? "–" : format(value);
}

// ---- the summary ----

// A text of the run's own, or null.
function told(name) {
  return typeof report.run[name] === "string" ? report.run[name] : null;
}

function tileTexts(summary) {
  const {reward, density, bytes: sync, pause, staleness} = summary;
  return [
    ["Reward", decimal(reward.first) + " → " + decimal(reward.last), "means of " + count(reward.window) + " steps"],
    ["Steps", count(summary.steps), span(summary.seconds) + ", learning rate " + decimal(summary.rate)],
    ["Changed by a step", known(density["1"], percent), "of the BF16 weights"],
    ["Bytes per sync", bytes(sync.sent), "full sync: " + bytes(sync.dense)],
    ["Reduction", times(sync.reduction), bytes(sync.saved) + " saved"],
    ["Pause", known(pause.median, seconds), known(pause.max, (value) => "longest " + seconds(value))],
    ["Staleness", known(staleness.mean, decimal), "most " + count(staleness.max)],
    ["Workers", count(summary.workers), summary.rejected === 0 ? "no trajectory rejected"
      : count(summary.rejected) + " trajectories rejected"],
  ];
}

function showSummary() {
  const {summary} = report;
  for (const [name, value, note] of tileTexts(summary)) {
    const tile = make("div", name === "Reward" ? "tile first" : "tile");
    tile.append(piece("dt", "", name), piece("dd", "", value), piece("dd", "", note));
    by("tiles").append(tile);
  }
  setText(by("about"), (told("command") ?? report.command) + " · " + new Date(report.made).toISOString().slice(0, 16).replace("T", " ") +
    " UTC · " + report.machine + (report.interrupted ? " · interrupted" : ""));
  setText(by("software"), "weft " + report.weft);
}

// What a run says of its end: that its worker's weights were compared with the trainer's, and by whom.
function showProof() {
  show(by("proof-card"), told("proof") !== null);
  setText(by("proof"), told("proof") ?? "");
}

// ---- tensors ----

// Means over as many steps as make at most STRIP_CELLS cells.
function condense(values) {
  const each = Math.ceil(values.length / STRIP_CELLS);
  return Array.from({length: Math.ceil(values.length / each)}, (_, index) =>
    mean(values.slice(index * each, (index + 1) * each).filter((value) => value !== null)));
}

// Darker is denser; `top` is as dark as it gets.
function makeStrip(values, top) {
  const cells = condense(values);
  const svg = shape("svg", {class: "strip", viewBox: `0 0 ${cells.length} 1`, preserveAspectRatio: "none",
    "aria-hidden": "true"});
  cells.forEach((value, index) => {
    svg.append(shape("rect", {x: index, y: 0, width: 1.02, height: 1, opacity: value === null ? 0
      : Math.sqrt(value / top).toFixed(3)}));
  });
  return svg;
}

function tensorRows(steps) {
  const names = [...new Set(steps.flatMap((step) => Object.keys(step.tensors)))];
  return names.map((name) => {
    const values = steps.map((step) => step.tensors[name] ?? null);
    const told = values.filter((value) => value !== null);
    return {name, values, mean: mean(told), most: most(told)};
  });
}

function showTensors() {
  const rows = tensorRows(report.steps);
  const top = Math.max(...rows.map((row) => row.most), Number.MIN_VALUE);
  for (const {name, values, mean: average, most: highest} of rows) {
    const row = make("tr");
    const strip = make("td");
    const title = piece("th", "tensor", name);
    title.scope = "row";
    strip.append(makeStrip(values, top));
    row.append(title, piece("td", "number", percent(average)), piece("td", "number", percent(highest)), strip);
    by("tensors").append(row);
  }
  setText(by("tensors-note"), rows.length === 0 ? "" : "k = 1; darkest: " + percent(top));
}

// ---- learning rates ----

function rateText() {
  const {rate, parameters} = report.summary;
  const [first] = report.rates;
  return "A BF16 weight changes in a step about as often as the step is large beside the gap to its neighbours, so " +
    "density grows with the learning rate. A policy of " + short(parameters) + " parameters needs a larger rate to " +
    "learn within minutes (here " + decimal(rate) + ") than one of 7B, which is trained at 1e-6 to 3e-6, and is denser " +
    "for it. The rows below are the final policy of this run, trained on for some steps at those rates: what the " +
    "same weights cost to send there. They are too short to show learning at those rates. With every patch go an " +
    "index page and a head, " + bytes(Math.round(first.bytes.sent - first.bytes.patch)) + " here, which count beside a " +
    "policy this small and not beside a large one.";
}

function showRates() {
  show(by("rates-card"), report.rates.length > 0);
  if (report.rates.length === 0) {
    return;
  }
  setText(by("rates-text"), rateText());
  const {summary} = report;
  const own = {rate: summary.rate, steps: summary.steps, density: summary.density, bytes: summary.bytes, own: true};
  for (const entry of [own, ...report.rates]) {
    const row = make("tr", entry.own ? "this" : "");
    const texts = [entry.rate.toExponential().replace("+", "") + (entry.own ? ", this run" : ""), count(entry.steps),
      known(entry.density["1"], percent), bytes(Math.round(entry.bytes.sent)),
      known(entry.bytes.patch ?? null, (value) => bytes(Math.round(value))), bytes(entry.bytes.dense),
      times(entry.bytes.reduction)];
    row.append(...texts.map((text, index) => piece("td", index > 0 ? "number" : "", text)));
    by("rates").append(row);
  }
}

// ---- settings, numbers ----

function flatten(value, name) {
  return value !== null && typeof value === "object"
    ? Object.entries(value).flatMap(([key, member]) => flatten(member, name === "" ? key : name + " " + key))
    : [[name, String(value)]];
}

function showSettings() {
  const {command, proof, ...others} = report.run; // these two have places of their own
  const settings = flatten(others, "");
  show(by("settings-card"), settings.length > 0);
  for (const [name, value] of settings) {
    by("settings").append(piece("dt", "", name.replaceAll("_", " ")), piece("dd", "", value));
  }
}

const COLUMNS = [
  ["Step", (step) => step.step], ["Version", (step) => step.version], ["Reward", (step) => step.reward],
  ["Evaluation", (step) => step.success], ["Loss", (step) => step.loss], ["Rate", (step) => step.rate],
  ["Density, k = 1", (step) => step.density["1"]], ["k = 8", (step) => step.density["8"]],
  ["k = 32", (step) => step.density["32"]], ["Bytes sent", (step) => step.bytes.sent],
  ["Full sync", (step) => step.bytes.dense], ["Staleness", (step) => step.staleness.mean],
  ["Pause, s", (step) => workersOf("pause", most)(step)], ["Step, s", (step) => step.seconds.step],
];

// Thousands of cells are made when somebody wants to see them.
function showSteps() {
  if (by("steps").children.length > 0) {
    return;
  }
  const head = make("tr");
  head.append(...COLUMNS.map(([name]) => Object.assign(piece("th", "number", name), {scope: "col"})));
  by("steps-head").append(head);
  for (const step of report.steps) {
    const row = make("tr");
    row.append(...COLUMNS.map(([, value]) => piece("td", "number", known(value(step), String))));
    by("steps").append(row);
  }
}

showSummary();
showProof();
for (const name of ["reward", "density", "bytes", "staleness", "trainer", "workers", "pause", "loss"]) {
  addTrainingChart(by("charts"), name).show(report.steps);
}
showTensors();
showRates();
showSettings();
by("steps-details").addEventListener("toggle", showSteps);
