
/* SPDX-License-Identifier: Apache-2.0
 *
 * common.js: words for numbers, and elements, for every page.
 *
 * Whatever a page shows may have been written by strangers (labels, names, errors): it is put into the page by
 * textContent and setAttribute only, never as HTML. Elements are changed only where their text has changed, so
 * that a selection survives and nothing flickers.
 */
"use strict";

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
    if (milliseconds > 0 && milliseconds < 0.1) {
      return Number((1000 * milliseconds).toPrecision(2)) + " µs";
    }
    return Number(milliseconds < 10 ? milliseconds.toPrecision(2) : milliseconds.toFixed(0)) + " ms";
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

function piece(name, className, text) {
  const element = make(name, className);
  element.textContent = text;
  return element;
}
