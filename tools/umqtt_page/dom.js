// Elements, and numbers and times as text. Everything from outside reaches a page as text, never as markup.

export const byId = (id) => document.getElementById(id);

// make("p", { class: "quiet", onclick }, "text", node, …): text is set as text; null and false are left out.
export function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key in { value: 1, checked: 1, disabled: 1, hidden: 1 }) node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function shape(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Writing only what differs keeps selections alive and screen readers quiet.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A name with what cannot be seen, or would turn the text around, made visible.
export function visible(name) {
  return String(name).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (mark) => `\\u{${mark.codePointAt(0).toString(16)}}`);
}

// Numbers

const digits = (most, least = 0) => new Intl.NumberFormat("en", { maximumFractionDigits: most, minimumFractionDigits: least }).format;
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format;
const [whole, tenths, hundredths, exact] = [digits(0), digits(1), digits(2, 2), digits(4)];

export const count = (value) => (Math.abs(value) < 1e7 ? whole : compact)(value);
export const rate = (value) => (value > 0 && value < 10 ? tenths(value) : count(value));
export const percent = (share) => (share && share < 0.001 ? "under 0.1 %" : `${tenths(Math.floor(share * 1000) / 10)} %`);

// As many digits as tell neighbours apart.
export function plain(value) {
  const size = Math.abs(value);
  if (size >= 1e9 || (size && size < 0.001)) return value.toExponential(1);
  if (size >= 100000) return compact(value);
  return (size >= 1000 ? whole : size >= 10 ? tenths : size >= 0.1 || !size ? digits(2) : exact)(value);
}

// The largest of the units of which there is one, with a digit after the point for fewer than ten.
function scaled(value, units) {
  const [size, name] = units.find(([least]) => Math.abs(value) >= least) ?? units.at(-1);
  return `${(Math.abs(value) < 10 * size && size > 1 ? tenths : whole)(value / size)} ${name}`;
}

export const duration = (ms) => scaled(ms, [[864e5, "d"], [36e5, "h"], [6e4, "min"], [1e3, "s"], [1, "ms"]]);
export const bytes = (value) => scaled(value, [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]);

const KNOWN = new Map(Object.entries({
  supply_v: ["Battery", (value) => `${hundredths(value)} V`],
  temp_c: ["Temperature", (value) => `${digits(1, 1)(value)} °C`],
  mem_free: ["Free memory", bytes],
  rssi: ["Signal", (value) => `${whole(value)} dBm`],
}));

// What a metric is called, and how its values are written.
export const metricTitle = (name) => (KNOWN.get(name) ?? [visible(name)])[0];
export const metricFormat = (name) => (KNOWN.get(name) ?? [0, plain])[1];

// Times, in milliseconds, in the viewer's zone unless a page says another

let zone;
export function setZone(name) { zone = name; formats.clear(); }
export const zoneName = () => zone;

const formats = new Map();
function format(key, options) {
  if (!formats.has(key)) formats.set(key, new Intl.DateTimeFormat("en-GB", { timeZone: zone, ...options }));
  return formats.get(key);
}
export const day = (ms) => format("day", { day: "numeric", month: "short" }).format(ms);
export const clock = (ms) => format("clock", { timeStyle: "short" }).format(ms);
export const precise = (ms) => format("precise", { timeStyle: "medium" }).format(ms);
export const moment = (ms) => `${day(ms)} ${clock(ms)}`;
export const stamp = (ms) => format("stamp", { dateStyle: "medium", timeStyle: "long" }).format(ms);
export function ago(ms, now = Date.now()) {
  const past = now - ms;
  return past < 5000 ? "just now" : `${duration(past)} ago`;
}
// A time as "3 min ago", with the whole time for those who point at it.
export const since = (ms, now) => make("time", { datetime: new Date(ms).toISOString(), title: stamp(ms) }, ago(ms, now));

// Health and other states: a shape beside the colour, so that nobody needs the colour.

// By name in a Map: a device may be called "constructor", which every object has.
const TONES = new Map(Object.entries({
  ok: "ok", online: "ok", there: "ok", "as desired": "ok",
  late: "warn", gaps: "warn", memory: "warn", quarantined: "warn", likely: "warn", drift: "warn", waiting: "warn",
  rebooting: "odd", goodbye: "calm", passed: "calm", unknown: "calm", absent: "calm",
  offline: "bad", lost: "bad", failed: "bad", refused: "bad",
}));
export const toneOf = (state) => TONES.get(state) ?? "warn";
export const pill = (state, text = state) => make("span", { class: `pill ${TONES.get(state) ?? "calm"}` }, visible(text));

// A small line without axes; holes stay holes.
export function spark(values, width = 96, height = 22) {
  const known = values.filter((value) => value !== null);
  const picture = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "spark", "aria-hidden": "true" });
  if (known.length < 2) return picture;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const [x, y] = [
    (at) => (1 + at * (width - 2) / (values.length - 1)).toFixed(1),
    (value) => (height - 2 - (high > low ? (value - low) / (high - low) : 0.5) * (height - 4)).toFixed(1),
  ];
  let path = "";
  values.forEach((value, at) => {
    if (value !== null) path += `${at && values[at - 1] !== null ? "L" : "M"}${x(at)} ${y(value)}`;
  });
  picture.append(shape("path", { d: path }));
  return picture;
}

// Messages and questions

let timer = 0;
export function toast(text) {
  let node = byId("toast");
  if (!node) document.body.append(node = make("div", { id: "toast", role: "status" }));
  node.textContent = text;
  node.hidden = false;
  clearTimeout(timer);
  timer = setTimeout(() => { node.hidden = true; }, 6000);
}

// A dialog that is shown until it is closed; resolves to the value of the button that closed it ("" for Escape).
export function dialog(title, content, ...buttons) {
  // A browser tells late that a dialog was closed: the one before may still be there.
  for (const closed of document.querySelectorAll("#confirm")) closed.remove();
  const form = make("form", { method: "dialog" }, make("h2", { id: "confirm-title" }, title), content, make("div", { class: "actions" }, buttons));
  const box = make("dialog", { id: "confirm", "aria-labelledby": "confirm-title" }, form);
  document.body.append(box);
  box.showModal();
  return new Promise((resolve) => box.addEventListener("close", () => { box.remove(); resolve(box.returnValue); }));
}

// Ask before something that cannot be taken back. Resolves to true or false.
export async function confirmed(title, text, action) {
  const buttons = [
    make("button", { class: "button", value: "no", autofocus: true }, "Cancel"), make("button", { class: "button stop", value: "yes", id: "confirm-yes" }, action),
  ];
  return await dialog(title, make("p", { class: "quiet" }, text), ...buttons) === "yes";
}
