
/* SPDX-License-Identifier: Apache-2.0
 *
 * training.js: the charts of a training run, from the lines that its trainer has told (doc/FORMAT.md, train/metrics):
 * for the page of a server, which follows a run, and for the report of one that is over.
 */

const SMOOTH_STEPS = 10;
const CHART_HEIGHT = 150;

function decimal(value) {
  return String(Number(value.toPrecision(3)));
}

function tickSeconds(value) {
  return value === 0 ? "0" : seconds(value);
}

function mean(values) {
  return values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
}

function most(values) {
  return values.length === 0 ? null : Math.max(...values);
}

// Of the last few steps, where all of them are there.
function smoothed(value) {
  return (step, index, steps) =>
    index + 1 < SMOOTH_STEPS ? null : mean(steps.slice(index + 1 - SMOOTH_STEPS, index + 1).map(value));
}

function workersOf(member, combine) {
  return (step) => combine(step.workers.map((worker) => worker[member]).filter((value) => value !== null));
}

function panel(note, format, series, more) {
  return {title: "", note, format, height: CHART_HEIGHT, series, ...more};
}

function line(name, label, colour, value, more) {
  return {name, label, colour, value, ...more};
}

// What the trainer spent beside the phases that it tells of.
function restOfStep(step) {
  const {step: all, wait, train, publish, state} = step.seconds;
  return Math.max(0, all - wait - train - publish - state);
}

const TRAINING_CHARTS = {
  reward: {
    title: "Reward",
    panels: [panel("mean of a batch", decimal, [
      line("reward", "reward", "good", (step) => step.reward, {faint: true}),
      line("smooth", "mean of " + SMOOTH_STEPS, "good", smoothed((step) => step.reward), {smooth: true}),
      line("success", "evaluation", "anchor", (step) => step.success),
    ], {linear: true, most: 1})],
  },
  loss: {
    title: "Loss",
    panels: [panel("of the policy, by step", decimal, [line("loss", "loss", "bad", (step) => step.loss)], {linear: true})],
  },
  density: {
    title: "Density",
    panels: [panel("BF16 weights that differ after k steps", percent, [
      line("1", "k = 1", "density", (step) => step.density["1"]),
      line("8", "k = 8", "patch", (step) => step.density["8"]),
      line("32", "k = 32", "anchor", (step) => step.density["32"]),
    ])],
  },
  bytes: {
    title: "Bytes per sync",
    panels: [panel("patch, index page and head, against all weights", tickBytes, [
      line("sent", "sent", "patch", (step) => step.bytes.sent),
      line("dense", "full sync", "plain", (step) => step.bytes.dense),
    ], {binary: true, logarithmic: true, tell: bytes})],
  },
  staleness: {
    title: "Staleness",
    panels: [panel("steps between the weights that answered and those that learn", decimal, [
      line("mean", "mean", "patch", (step) => step.staleness.mean),
      line("max", "most", "bad", (step) => step.staleness.max, {faint: true}),
    ], {linear: true})],
  },
  pause: {
    title: "Pause of a worker",
    panels: [panel("while new weights are written", tickSeconds, [
      line("pause", "mean", "patch", workersOf("pause", mean)),
      line("longest", "longest", "bad", workersOf("pause", most), {faint: true}),
    ], {tell: seconds})],
  },
  trainer: {
    title: "Time of the trainer",
    panels: [panel("by step and phase", tickSeconds, [
      line("wait", "waits for rollouts", "plain", (step) => step.seconds.wait),
      line("train", "trains", "good", (step) => step.seconds.train),
      line("publish", "publishes", "patch", (step) => step.seconds.publish),
      line("state", "saves", "anchor", (step) => step.seconds.state),
      line("rest", "other", "density", restOfStep),
    ], {stacked: true, linear: true, tell: seconds})],
  },
  workers: {
    title: "Time of a worker",
    panels: [panel("mean of all, by step and phase", tickSeconds, [
      line("generate", "generates", "good", workersOf("generate", mean)),
      line("pull", "pulls", "patch", workersOf("pull", mean)),
      line("put", "hands in", "anchor", workersOf("put", mean)),
    ], {stacked: true, linear: true, tell: seconds})],
  },
};

// In words, for who cannot see the chart: where each series begins and where it ends.
function describeSeries(definition) {
  return (steps) => definition.title + " by step: " + definition.panels.flatMap((laid) => laid.series
    .filter((series) => series.label !== undefined)
    .map((series) => [series, steps.map(series.value).filter((value) => value !== null)])
    .filter(([, values]) => values.length > 0)
    .map(([series, values]) => series.label + " from " + (laid.tell ?? laid.format)(values[0]) + " to " +
      (laid.tell ?? laid.format)(values.at(-1)))).join("; ") + ". Arrow keys move through the steps.";
}

// A card with one of the charts; `show` of what is returned gives it the steps.
function addTrainingChart(parent, name) {
  const definition = TRAINING_CHARTS[name];
  const card = make("section", "card");
  const head = make("div", "head");
  const readout = make("p", "readout high");
  const box = make("div");
  const svg = shape("svg", {class: "chart", id: "chart-" + name, role: "img", tabindex: 0});
  head.append(piece("h3", "", definition.title));
  box.append(svg);
  card.append(head, piece("p", "quiet", definition.panels[0].note), readout, box);
  parent.append(card);
  return new Chart(svg, readout, {
    key: (step) => step.step,
    panels: definition.panels,
    readout: (step, index, chart) => [piece("b", "", "step " + count(step.step)), ...readSeries(chart, index)],
    describe: describeSeries(definition),
    empty: "no steps yet",
  });
}
