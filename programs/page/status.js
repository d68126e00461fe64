
/* SPDX-License-Identifier: Apache-2.0
 *
 * status.js: asks the server every second what there is, and shows it.
 *
 * Whatever the server tells may have been written by strangers (labels, names, errors): it is put into the
 * page by textContent and setAttribute only, never as HTML. Elements are changed only where their text has
 * changed, so that a selection survives and nothing flickers.
 */
"use strict";

const ASK_MILLISECONDS = 1000;
const PATIENCE_MILLISECONDS = 5000;
const MOST_POINTS = 160;

const state = {
  status: null,
  answeredAt: 0, // milliseconds since 1970
  lost: false,
  versions: [], // ascending
  run: null,
  generation: null,
  range: 300,
  chosen: null, // the version under the pointer
  token: sessionStorage.getItem("weft-token"),
};

// ---- words ----

const numbers = new Intl.NumberFormat("en-US");

function count(value) {
  return numbers.format(value);
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1000 && unit + 1 < units.length) {
    value /= 1024;
    unit++;
  }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return value.toFixed(digits) + " " + units[unit];
}

function short(value) {
  const units = ["", " K", " M", " B", " T"];
  let unit = 0;
  while (value >= 1000 && unit + 1 < units.length) {
    value /= 1000;
    unit++;
  }
  return (unit === 0 ? String(value) : value.toPrecision(3)) + units[unit];
}

function percent(ratio) {
  const value = 100 * ratio;
  return Number(value.toPrecision(value >= 10 ? 3 : 2)) + "%";
}

function seconds(value) {
  if (value < 1) {
    const milliseconds = Math.max(0, value * 1000);
    return (milliseconds < 10 ? Number(milliseconds.toFixed(1)) : Math.round(milliseconds)) + " ms";
  }
  if (value < 10) {
    return value.toFixed(1) + " s";
  }
  return span(value);
}

function span(value) {
  const steps = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
  for (const [size, name, smallSize, smallName] of steps) {
    if (value >= size) {
      const small = Math.floor((value % size) / smallSize);
      return Math.floor(value / size) + " " + name + (small > 0 ? " " + small + " " + smallName : "");
    }
  }
  return Math.floor(value) + " s";
}

function ago(value) {
  return value < 0 ? "just now" : seconds(value) + " ago";
}

function clock(milliseconds) {
  return new Date(milliseconds).toLocaleTimeString("en-GB");
}

function date(milliseconds) {
  const then = new Date(milliseconds);
  const today = then.toDateString() === new Date().toDateString();
  return (today ? "" : then.toLocaleDateString("en-CA") + " ") + then.toLocaleTimeString("en-GB");
}

// ---- elements ----

function by(id) {
  return document.getElementById(id);
}

function setText(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

function setClass(element, name) {
  if (element.className !== name) {
    element.className = name;
  }
}

function show(element, visible) {
  if (element.hidden === visible) {
    element.hidden = !visible;
  }
}

// Gives `parent` as many children as there are items, made by `make`, and has each filled by `fill`.
function fillList(parent, items, make, fill) {
  while (parent.children.length > items.length) {
    parent.lastElementChild.remove();
  }
  items.forEach((item, index) => {
    const child = parent.children[index] ?? parent.appendChild(make());
    fill(child, item);
  });
}

function make(name, className) {
  const element = document.createElement(name);
  element.className = className ?? "";
  return element;
}

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

async function askAll() {
  const status = await ask("v1/status");
  const run = status.head?.run ?? null;
  if (state.lost || run !== state.run) {
    forgetHistory();
  }
  state.status = status;
  state.run = run;
  state.answeredAt = Date.now();
  state.lost = false;
  return askHistory();
}

async function turn() {
  let refused = false;
  let moved = false;
  try {
    moved = await askAll();
  } catch (error) {
    refused = error instanceof Refused;
    state.lost = !refused;
  }
  setTimeout(turn, ASK_MILLISECONDS);
  render(refused);
  if (moved) {
    drawPlot();
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

function renderHistory(status) {
  const error = status.history?.error;
  setText(by("history-note"), error ? "The history cannot be read: " + error : "");
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
    renderHistory(state.status);
  }
}

// ---- the plot ----

const PLOT = {left: 64, right: 12, top: 30, middle: 196, second: 234, bottom: 306, height: 330};

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

function density(version) {
  return version.changed / Math.max(1, version.total);
}

function shownVersions() {
  return state.range === 0 ? state.versions : state.versions.slice(-state.range);
}

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

// Linear from zero, or logarithmic where the largest values would hide most of the others. The few smallest do not
// count: a version that changed nothing shall not flatten the rest. What is below a logarithmic scale lies on its end.
function makeScale(values, low, high, binary) {
  const sorted = values.filter((value) => value > 0).sort((a, b) => a - b);
  const most = sorted.at(-1) ?? 1;
  const least = sorted[Math.floor(sorted.length / 20)] ?? 1;
  if (most > 12 * least) {
    const from = Math.log10(least) - 0.1;
    const to = Math.log10(most) + 0.05;
    const place = (value) => low + (high - low) * Math.max(0, (Math.log10(value) - from) / (to - from));
    const room = Math.floor(Math.abs(high - low) / 20);
    return {place, ticks: logTicks(least, most, binary, room), name: ", logarithmic"};
  }
  const step = binary ? roundBytes(most / 3) : roundStep(most / 3);
  const steps = Math.ceil(most / step);
  const ticks = Array.from({length: steps + 1}, (_, index) => index * step);
  return {place: (value) => low + (high - low) * value / (steps * step), ticks, name: ""};
}

// Powers of ten, of bytes in units of 1024; not more than there is room for.
function logTicks(least, most, binary, room) {
  const ticks = [];
  const first = binary ? 0 : Math.floor(Math.log10(least));
  for (let power = first; power < first + 30; power++) {
    ticks.push(binary ? 1024 ** Math.floor(power / 3) * 10 ** (power % 3) : 10 ** power);
  }
  const shown = ticks.filter((tick) => tick >= least * 0.8 && tick <= most * 1.1);
  const every = Math.ceil(shown.length / room);
  return shown.filter((_, index) => index % every === 0);
}

function drawAxis(group, scale, width, format) {
  for (const tick of scale.ticks) {
    const y = Math.round(scale.place(tick)) + 0.5;
    group.append(shape("line", {class: tick === 0 ? "axis" : "grid", x1: PLOT.left, x2: width - PLOT.right, y1: y, y2: y}));
    group.append(shape("text", {x: PLOT.left - 8, y: y + 4, "text-anchor": "end"}, format(tick)));
  }
}

function tickBytes(value) {
  return value === 0 ? "0" : bytes(value).replace(/\.0+ /, " ").replace(/(\.\d)0 /, "$1 ");
}

function drawVersions(group, versions, place, width) {
  const first = versions[0].version;
  const last = versions.at(-1).version;
  const step = Math.max(1, roundStep(Math.max(1, (last - first) / Math.max(2, width / 110))));
  group.append(shape("line", {class: "axis", x1: PLOT.left, x2: width - PLOT.right, y1: PLOT.bottom + 0.5, y2: PLOT.bottom + 0.5}));
  for (let tick = Math.ceil(first / step) * step; tick <= last; tick += step) {
    const x = place(tick);
    group.append(shape("line", {class: "axis", x1: x, x2: x, y1: PLOT.bottom, y2: PLOT.bottom + 4}));
    group.append(shape("text", {x, y: PLOT.height - 6, "text-anchor": "middle"}, count(tick)));
  }
}

function drawSeries(group, points, name) {
  const path = points.map(([x, y], index) => (index === 0 ? "M" : "L") + x.toFixed(1) + " " + y.toFixed(1)).join("");
  group.append(shape("path", {class: "line " + name, d: path}));
  if (points.length <= MOST_POINTS) {
    for (const [x, y] of points) {
      group.append(shape("circle", {class: "point " + name, cx: x.toFixed(1), cy: y.toFixed(1), r: points.length > 80 ? 1.8 : 2.6}));
    }
  }
}

function drawAnchors(group, versions, place) {
  for (const version of versions) {
    if (version.anchor_bytes > 0) {
      const x = place(version.version);
      group.append(shape("line", {class: "anchor-line", x1: x, x2: x, y1: PLOT.top + 6, y2: PLOT.middle}));
      group.append(shape("line", {class: "anchor-line", x1: x, x2: x, y1: PLOT.second, y2: PLOT.bottom}));
      group.append(shape("path", {class: "anchor", d: `M${x} ${PLOT.top - 5}l5 5l-5 5l-5 -5z`}));
    }
  }
}

function drawTitles(group, width, sizeScale, densityScale) {
  group.append(shape("text", {class: "title", x: 0, y: 13}, "Patch size" + sizeScale.name));
  group.append(shape("text", {class: "title", x: 0, y: PLOT.second - 12}, "Changed weights" + densityScale.name));
  group.append(shape("text", {x: width - PLOT.right, y: 13, "text-anchor": "end", class: "key"}, "\u25c6 anchor, the whole model"));
}

// What the pointer needs to know of what was drawn.
let drawing = null;

function drawPlot() {
  const svg = by("plot");
  const width = Math.max(280, by("plot-box").clientWidth);
  const versions = shownVersions();
  svg.setAttribute("viewBox", `0 0 ${width} ${PLOT.height}`);
  svg.replaceChildren();
  drawing = null;
  if (versions.length === 0) {
    svg.append(shape("text", {x: width / 2, y: PLOT.height / 2, "text-anchor": "middle"}, "no versions yet"));
    setText(by("readout"), "\u00a0");
    return;
  }
  const first = versions[0].version;
  const distance = Math.max(1, versions.at(-1).version - first);
  const place = (version) => PLOT.left + 8 + (width - PLOT.left - PLOT.right - 16) * (version - first) / distance;
  const patched = versions.filter((version) => version.patch_bytes > 0);
  const sizes = patched.map((version) => version.patch_bytes);
  const densities = patched.map(density);
  const sizeScale = makeScale(sizes, PLOT.middle, PLOT.top, true);
  const densityScale = makeScale(densities, PLOT.bottom, PLOT.second, false);
  const group = shape("g", {});
  drawAxis(group, sizeScale, width, tickBytes);
  drawAxis(group, densityScale, width, percent);
  drawVersions(group, versions, place, width);
  drawAnchors(group, versions, place);
  drawTitles(group, width, sizeScale, densityScale);
  drawSeries(group, patched.map((version, index) => [place(version.version), sizeScale.place(sizes[index])]), "patch");
  drawSeries(group, patched.map((version, index) => [place(version.version), densityScale.place(densities[index])]), "density");
  const cursor = shape("g", {visibility: "hidden"});
  cursor.append(shape("line", {class: "cursor", y1: PLOT.top, y2: PLOT.bottom}),
    shape("circle", {class: "cursor-point patch", r: 5}), shape("circle", {class: "cursor-point density", r: 5}));
  svg.append(group, cursor);
  drawing = {versions, place, sizeScale, densityScale, cursor, width, first, distance};
  drawCursor();
}

function piece(name, className, text) {
  const element = make(name, className);
  element.textContent = text;
  return element;
}

function readout(version) {
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

function moveCursor(version) {
  const {place, sizeScale, densityScale, cursor} = drawing;
  const [line, patch, changed] = cursor.children;
  const x = Math.round(place(version.version)) + 0.5;
  const visible = version.patch_bytes > 0 ? "inherit" : "hidden";
  line.setAttribute("x1", x);
  line.setAttribute("x2", x);
  for (const [point, y] of [[patch, sizeScale.place(version.patch_bytes)],
    [changed, densityScale.place(density(version))]]) {
    point.setAttribute("cx", place(version.version));
    point.setAttribute("cy", y);
    point.setAttribute("visibility", visible);
  }
  cursor.setAttribute("visibility", "visible");
}

// The chosen version, or the newest one without a cursor.
function drawCursor() {
  if (drawing === null) {
    return;
  }
  const chosen = drawing.versions.find((version) => version.version === state.chosen);
  if (chosen === undefined) {
    drawing.cursor.setAttribute("visibility", "hidden");
  } else {
    moveCursor(chosen);
  }
  by("readout").replaceChildren(...readout(chosen ?? drawing.versions.at(-1)));
}

function choose(version) {
  state.chosen = version;
  drawCursor();
}

function pointAt(event) {
  if (drawing === null) {
    return;
  }
  const box = by("plot").getBoundingClientRect();
  const x = (event.clientX - box.left) * drawing.width / box.width;
  const part = (x - drawing.place(drawing.first)) / (drawing.width - PLOT.left - PLOT.right - 16);
  const index = Math.round(part * drawing.distance);
  choose(drawing.versions[Math.min(drawing.versions.length - 1, Math.max(0, index))].version);
}

function chooseByKey(event) {
  if (drawing === null || !["ArrowLeft", "ArrowRight", "Home", "End", "Escape"].includes(event.key)) {
    return;
  }
  const versions = drawing.versions;
  const at = versions.findIndex((version) => version.version === state.chosen);
  const from = at < 0 ? versions.length - 1 : at;
  const to = {ArrowLeft: at < 0 ? from : from - 1, ArrowRight: from + 1, Home: 0, End: versions.length - 1}[event.key];
  choose(to === undefined ? null : versions[Math.min(versions.length - 1, Math.max(0, to))].version);
  event.preventDefault();
}

// ---- beginning ----

by("publish-url").textContent = location.origin + location.pathname.replace(/\/$/, "");
by("plot").addEventListener("pointermove", pointAt);
by("plot").addEventListener("pointerdown", pointAt);
by("plot").addEventListener("pointerleave", () => choose(null));
by("plot").addEventListener("keydown", chooseByKey);
// Read aloud while somebody moves through the versions, and not whenever there is a new one.
by("plot").addEventListener("focus", () => by("readout").setAttribute("aria-live", "polite"));
by("plot").addEventListener("blur", () => {
  by("readout").setAttribute("aria-live", "off");
  choose(null);
});
by("range").addEventListener("change", (event) => {
  state.range = Number(event.target.value);
  drawPlot();
});
by("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = by("token").value.trim();
  sessionStorage.setItem("weft-token", state.token);
  by("token").value = "";
});
new ResizeObserver(drawPlot).observe(by("plot-box"));
turn();
