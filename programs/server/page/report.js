
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

function exponent(value) {
  return value.toExponential().replace("+", "");
}

// The first line: what was saved, and whether the policy learned meanwhile.
function savedText({reward, bytes: sync}) {
  return sync.reduction === null ? "A policy learns, and its workers follow bit for bit"
    : bytes(Math.max(0, Math.round(sync.saved))) + " saved: " + times(sync.reduction) + " fewer bytes, while reward went from " +
      reward.first.toFixed(2) + " to " + reward.last.toFixed(2);
}

// A text of the run's own, or null.
function told(name) {
  return typeof report.run[name] === "string" ? report.run[name] : null;
}

function tileTexts(summary) {
  const {reward, density, bytes: sync, pause, staleness} = summary;
  return [
    ["Reduction", times(sync.reduction), bytes(sync.saved) + " saved"],
    ["Reward", decimal(reward.first) + " → " + decimal(reward.last), "means of " + count(reward.window) + " steps"],
    ["Steps", count(summary.steps), span(summary.seconds) + ", learning rate " + exponent(summary.rate)],
    ["Changed by a step", known(density["1"], percent), "of the BF16 weights"],
    ["Bytes per sync", bytes(sync.sent), "full sync: " + bytes(sync.dense)],
    ["Pause", known(pause.median, seconds), known(pause.max, (value) => "longest " + seconds(value))],
    ["Staleness", known(staleness.mean, decimal), "most " + count(staleness.max)],
    ["Workers", count(summary.workers), summary.rejected === 0 ? "no trajectory rejected"
      : count(summary.rejected) + " trajectories rejected"],
  ];
}

function showSummary() {
  const {summary} = report;
  for (const [name, value, note] of tileTexts(summary)) {
    const tile = make("div", name === "Reduction" || name === "Reward" ? "tile first" : "tile");
    tile.append(piece("dt", "", name), piece("dd", "", value), piece("dd", "", note));
    by("tiles").append(tile);
  }
  setText(by("saved"), savedText(summary));
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

// ---- the model of real size ----

// A bar as long as its share of the whole.
function addScale(name, className, size, whole) {
  const track = make("div");
  const bar = make("div", "scale " + className);
  bar.style.width = (100 * size / whole).toFixed(3) + "%";
  track.append(bar);
  by("large-scales").append(piece("span", "quiet", name), track, piece("span", "number", bytes(size)));
}

function showLarge() {
  const {large} = report;
  show(by("large-card"), large !== null);
  if (large === null) {
    return;
  }
  addScale("full sync", "", large.bytes.dense, large.bytes.dense);
  addScale("weft", "patch", large.bytes.sent, large.bytes.dense);
  setText(by("large"), "A step at a learning rate of " + exponent(large.rate) + " changed " + percent(large.density) + " of " +
    short(large.parameters) + " weights: " + times(large.bytes.reduction) + " fewer bytes. The trainer published it in " +
    seconds(large.publish) + ", the worker fetched and proved it in " + seconds(large.prepare) + " while its weights " +
    "were in use, and paused for " + seconds(large.pause) + ". Then all bits of both were compared, and were equal. " +
    "The weights and the step are made by the generator of weft bench.");
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
showLarge();
showSettings();
by("steps-details").addEventListener("toggle", showSteps);
