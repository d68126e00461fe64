
/* SPDX-License-Identifier: Apache-2.0
 *
 * status.js: asks the server every second what there is, and shows it.
 */

const ASK_MILLISECONDS = 1000;
const PATIENCE_MILLISECONDS = 5000;
const MOST_STEPS = 4096;

const state = {
  status: null,
  answeredAt: 0, // milliseconds since 1970
  lost: false,
  versions: [], // ascending
  run: null,
  generation: null,
  range: 300,
  steps: [], // of a trainer, ascending
  trainingError: null,
  token: sessionStorage.getItem("weft-token"),
};

// ---- asking ----

class Refused extends Error {}

async function ask(path) {
  const headers = state.token === null ? {} : {Authorization: "Bearer " + state.token};
  const answer = await fetch(path, {headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MILLISECONDS)});
  if (answer.status === 401 || answer.status === 403) {
    throw new Refused();
  }
  if (!answer.ok) {
    throw new Error(path + ": " + answer.status);
  }
  return answer.json();
}

function forgetHistory() {
  state.versions = [];
  state.generation = null;
}

// Takes the versions that are new, or all of them if those that we have may be others now. True if it took any.
async function askHistory() {
  const told = state.status.history;
  const newest = state.versions.at(-1)?.version ?? 0;
  const all = told.generation !== state.generation;
  if (!all && told.newest === newest) {
    return false;
  }
  const answer = await ask("v1/history?since=" + (all ? 0 : newest));
  if (!all && answer.generation !== state.generation) {
    state.generation = null; // it has changed since the status was told: all of them, the next time
    return false;
  }
  const kept = all ? [] : state.versions.filter((version) => version.version >= answer.oldest);
  state.versions = kept.concat(answer.versions);
  state.generation = answer.generation;
  return true;
}

// Takes the steps of a trainer that are new; all of them if it has gone back. True if it took any.
async function askTraining() {
  const newest = state.steps.at(-1)?.step ?? -1;
  const answer = await ask("v1/train?from=" + (newest + 1));
  state.trainingError = answer.error;
  if (answer.newest < newest) {
    state.steps = [];
    return true;
  }
  state.steps = state.steps.concat(answer.steps).slice(-MOST_STEPS);
  return answer.steps.length > 0;
}

async function askAll() {
  const status = await ask("v1/status");
  const run = status.head?.run ?? null;
  if (state.lost || run !== state.run) {
    forgetHistory();
    state.steps = [];
  }
  state.status = status;
  state.run = run;
  state.answeredAt = Date.now();
  state.lost = false;
  return {versions: await askHistory(), steps: await askTraining()};
}

async function turn() {
  let refused = false;
  let moved = {};
  try {
    moved = await askAll();
  } catch (error) {
    refused = error instanceof Refused;
    state.lost = !refused;
  }
  setTimeout(turn, ASK_MILLISECONDS);
  render(refused);
  if (moved.versions) {
    versionChart.show(shownVersions());
  }
  if (moved.steps) {
    showTraining();
  }
}

// ---- the newest version ----

function renderLink(refused) {
  const link = by("link");
  if (refused) {
    setClass(link, "link lost");
    setText(by("link-text"), state.token === null ? "a token is needed" : "the token is refused");
  } else if (state.lost) {
    setClass(link, "link lost");
    setText(by("link-text"), state.answeredAt === 0 ? "no answer yet" : "no answer since " + clock(state.answeredAt));
  } else {
    setClass(link, "link live");
    setText(by("link-text"), "live");
  }
  setClass(document.body, state.lost || refused ? "stale" : "");
}

function renderHead(status) {
  const head = status.head;
  setText(by("store"), status.store ?? "weft");
  setText(by("run"), head === null ? "no run yet" : "run " + head.run);
  show(by("empty"), head === null || head.version === 0);
  document.title = (head === null ? "" : "v" + head.version + " · ") + (status.store ?? "") + " · weft";
  if (head === null || head.version === 0) {
    for (const id of ["version", "patch", "reduction", "density"]) {
      setText(by(id), "–");
      setText(by(id + "-note"), "\u00a0");
    }
    return;
  }
  const newest = state.versions.at(-1);
  const patched = head.patch_bytes > 0;
  setText(by("version"), count(head.version));
  setText(by("version-note"), "published " + ago(head.age_seconds));
  setText(by("patch"), patched ? bytes(head.patch_bytes) : "none");
  setText(by("patch-note"), patched ? "model: " + bytes(head.dense_bytes) : "it came as an anchor");
  setText(by("reduction"), patched ? short(Number((head.dense_bytes / head.patch_bytes).toPrecision(3))) + "×" : "–");
  setText(by("reduction-note"), patched ? "less to send" : "model: " + bytes(head.dense_bytes));
  setText(by("density"), patched && head.density !== null ? percent(head.density) : "–");
  const counted = patched && newest?.version === head.version;
  setText(by("density-note"), counted ? short(newest.changed) + " of " + short(newest.total) : "\u00a0");
}

function renderFacts(status) {
  const head = status.head;
  const facts = [];
  if (head !== null) {
    const newest = state.versions.at(-1);
    const labels = newest?.version === head.version ? Object.entries(newest.labels) : [];
    facts.push(["chip", "epoch " + head.epoch]);
    facts.push(head.signed ? ["chip good", "signed"] : ["chip", "not signed"]);
    facts.push(["chip", "digest " + head.digest.slice(0, 12)]);
    if (status.relay?.reached === false) {
      facts.push(["chip bad", "upstream not reached for " + span(status.relay.state_seconds)]);
    }
    facts.push(...labels.map(([key, value]) => ["chip label", key + "=" + value]));
  }
  fillList(by("facts"), facts, () => make("span"), (chip, [name, text]) => {
    setClass(chip, name);
    setText(chip, text);
  });
}

// ---- followers ----

function followerClass(follower) {
  if (!follower.live) {
    return "gone";
  }
  return follower.state === "failed" ? "wrong" : follower.lag > 0 ? "behind" : "";
}

function makeFollower() {
  const row = make("tr");
  for (const name of ["", "state", "number", "number", "number", "number", "number", ""]) {
    row.appendChild(make("td", name));
  }
  return row;
}

function fillFollower(row, follower) {
  const holds = follower.version > 0;
  const texts = [
    follower.name,
    follower.live || follower.state === "ended" ? follower.state : "gone",
    holds ? count(follower.version) : "–",
    count(follower.lag),
    follower.lag > 0 && follower.lag_seconds !== null ? seconds(follower.lag_seconds) : "–",
    holds ? seconds(follower.pause_seconds) : "–",
    ago(follower.age_seconds),
    follower.error?.text ?? "",
  ];
  setClass(row, followerClass(follower));
  texts.forEach((text, index) => setText(row.children[index], text));
  row.firstElementChild.title = follower.name;
}

// The server has them in order: the live ones first, and of these the one that is most behind.
function renderFollowers(status) {
  const fleet = status.fleet;
  const followers = status.followers;
  show(by("followers-card"), followers.length > 0);
  setText(by("fleet"), count(fleet.live));
  setText(by("fleet-note"), fleet.live === 0 ? "none has reported lately"
    : fleet.most_lag === 0 ? "all up to date" : "up to " + count(fleet.most_lag) + " behind");
  fillList(by("followers"), followers, makeFollower, fillFollower);
  const gone = fleet.reports - fleet.live;
  const left = fleet.reports - followers.length;
  setText(by("followers-note"), count(fleet.live) + " live" + (gone > 0 ? ", " + count(gone) + " gone" : "") +
    (left > 0 ? ", " + count(left) + " not shown" : ""));
}

// ---- errors, the server ----

function renderErrors(status) {
  const errors = [...status.errors];
  if (status.relay?.error) {
    errors.unshift({age_seconds: status.relay.state_seconds, text: "upstream: " + status.relay.error});
  }
  show(by("errors-none"), errors.length === 0);
  fillList(by("errors"), errors, () => {
    const item = make("li");
    item.append(make("time"), make("span"));
    return item;
  }, (item, error) => {
    setText(item.children[0], span(error.age_seconds) + " ago");
    setText(item.children[1], error.text);
  });
}

function requestCount(status) {
  return Object.values(status.requests).flatMap(Object.values).reduce((sum, value) => sum + value, 0);
}

function relayFacts(relay) {
  if (relay === undefined) {
    return [];
  }
  const asked = relay.hits + relay.misses + relay.joined;
  return [
    ["Relays", relay.upstream],
    ["Upstream", relay.reached ? "reached" : "not reached for " + span(relay.state_seconds)],
    ["Fetched from there", bytes(relay.upstream_bytes)],
    ["Cache", bytes(relay.cached_bytes) + " of " + bytes(relay.cache_limit)],
    ["Answered from the cache", asked > 0 ? percent(1 - relay.misses / asked) : "–"],
  ];
}

function renderServer(status) {
  const facts = [
    ...relayFacts(status.relay),
    ["Up for", span(status.uptime_seconds)],
    ["Requests", count(requestCount(status)) + (status.requests_cut > 0 ? ", " + count(status.requests_cut) + " cut" : "")],
    ["Sent", bytes(status.bytes_sent)],
    ["Received", bytes(status.bytes_received)],
    ["Connections", count(status.connections)],
    ["Waiting for a version", count(status.watchers)],
    ["Writing", status.read_only ? "refused" : "allowed"],
  ];
  fillList(by("server"), facts.flat(), () => make(by("server").children.length % 2 === 0 ? "dt" : "dd"), setText);
  setText(by("software"), "weft " + status.weft);
}

function renderNotes(status) {
  const error = status.history?.error;
  setText(by("history-note"), error ? "The history cannot be read: " + error : "");
  const newest = state.steps.at(-1);
  show(by("training"), newest !== undefined || state.trainingError !== null);
  setText(by("training-note"), state.trainingError !== null ? "What the trainer tells cannot be read: " + state.trainingError
    : newest === undefined ? "" : "step " + count(newest.step) + ", version " + count(newest.version) +
      ", learning rate " + decimal(newest.rate));
}

function render(refused) {
  renderLink(refused);
  show(by("token-form"), refused);
  if (state.status !== null) {
    renderHead(state.status);
    renderFacts(state.status);
    renderFollowers(state.status);
    renderErrors(state.status);
    renderServer(state.status);
    renderNotes(state.status);
  }
}

// ---- the plot ----

function density(version) {
  return version.changed / Math.max(1, version.total);
}

function shownVersions() {
  return state.range === 0 ? state.versions : state.versions.slice(-state.range);
}

function drawAnchors(group, chart) {
  const {place, panels, width} = chart.drawn;
  for (const version of chart.items) {
    if (version.anchor_bytes > 0) {
      const x = place(version.version);
      for (const panel of panels) {
        group.append(shape("line", {class: "anchor-line", x1: x, x2: x, y1: panel.top, y2: panel.bottom}));
      }
      group.append(shape("path", {class: "mark anchor", d: `M${x} ${panels[0].top - 5}l5 5l-5 5l-5 -5z`}));
    }
  }
  group.append(shape("text", {x: width - CHART.right, y: panels[0].top - 14, "text-anchor": "end", class: "key"},
    "\u25c6 anchor, the whole model"));
}

function readVersion(version) {
  const parts = [piece("b", "", "version " + count(version.version)), piece("span", "", date(version.published_milliseconds))];
  if (version.patch_bytes > 0) {
    parts.push(piece("span", "patch", "patch " + bytes(version.patch_bytes)));
    parts.push(piece("span", "density", percent(density(version)) + " changed"));
  }
  if (version.anchor_bytes > 0) {
    parts.push(piece("span", "anchor", "anchor " + bytes(version.anchor_bytes)));
  }
  parts.push(...Object.entries(version.labels).map(([key, value]) => piece("span", "", key + "=" + value)));
  return parts;
}

function ofPatch(value) {
  return (version) => version.patch_bytes > 0 ? value(version) : null;
}

const versionChart = new Chart(by("plot"), by("readout"), {
  key: (version) => version.version,
  panels: [
    {title: "Patch size", height: 166, binary: true, format: tickBytes,
      series: [{name: "patch", colour: "patch", value: ofPatch((version) => version.patch_bytes)}]},
    {title: "Changed weights", height: 72, format: percent,
      series: [{name: "density", colour: "density", value: ofPatch(density)}]},
  ],
  readout: readVersion,
  decorate: drawAnchors,
  empty: "no versions yet",
});
// ---- training ----

const trainingCharts = ["reward", "loss", "density", "bytes", "staleness", "trainer"].map((name) =>
  addTrainingChart(by("training-charts"), name));

function showTraining() {
  for (const chart of trainingCharts) {
    chart.show(state.steps);
  }
}

// ---- beginning ----

by("publish-url").textContent = location.origin + location.pathname.replace(/\/$/, "");
by("range").addEventListener("change", (event) => {
  state.range = Number(event.target.value);
  versionChart.show(shownVersions());
});
by("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = by("token").value.trim();
  sessionStorage.setItem("weft-token", state.token);
  by("token").value = "";
});
turn();
