// Small helpers. Everything that a device said reaches the page as text, never as markup.
// The files of this folder are joined into one script, in the order that build.py gives.

const byId = (id) => document.getElementById(id);

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function shape(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// A name with what cannot be seen, or would turn the text around, made visible.
function visible(name) {
  return String(name).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (mark) => `\\u{${mark.codePointAt(0).toString(16)}}`);
}

const number = (digits) => new Intl.NumberFormat("en", { maximumFractionDigits: digits });
const [whole, tenths, hundredths] = [0, 1, 2].map(number);
const fixed = (digits) => new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const [tenth, hundredth] = [1, 2].map(fixed);
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const signed = (text) => text.replace("-", "\u2212");

function count(value) {
  return Math.abs(value) < 100000 ? signed(whole.format(value)) : signed(compact.format(value));
}

const several = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

// The same where there is room for it.
const long = (value) => (Math.abs(value) < 1e7 ? signed(whole.format(value)) : count(value));

// As many digits as tell neighbours apart.
function plain(value) {
  const size = Math.abs(value);
  if (size >= 1e9 || (size && size < 0.001)) return signed(value.toExponential(1));
  if (size >= 100000) return signed(compact.format(value));
  return signed((size >= 1000 ? whole : size >= 10 ? tenths : size >= 0.1 || !size ? hundredths : number(4)).format(value));
}

function bytes(value) {
  const units = ["B", "kB", "MB", "GB"];
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${signed((unit && Math.abs(value) < 100 ? tenths : whole).format(value))} ${units[unit]}`;
}

function duration(ms) {
  const size = Math.abs(ms);
  for (const [unit, name] of [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"]]) {
    if (size >= unit) return `${signed((size < 10 * unit ? tenths : whole).format(ms / unit))} ${name}`;
  }
  return `${signed(whole.format(ms))} ms`;
}

const two = (value) => String(value).padStart(2, "0");
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

function day(seconds) {
  const date = new Date(seconds * 1000);
  return `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}`;
}

// step: of what the time is the begin or the end, in seconds; below a minute the seconds are shown.
function clock(seconds, step = 60) {
  const date = new Date(seconds * 1000);
  const parts = [date.getUTCHours(), date.getUTCMinutes(), ...(step < 60 ? [date.getUTCSeconds()] : [])];
  return parts.map(two).join(":");
}

const moment = (seconds, step = 60) => `${day(seconds)} ${clock(seconds, step)}`;

// Metric: what it is called, how it is written, and the finest difference that this shows.
// A Map: a device may call its metric constructor.
const UNITS = new Map(Object.entries({
  supply_v: ["Battery", (value) => `${signed(hundredth.format(value))} V`, 0.01],
  temp_c: ["Temperature", (value) => `${signed(tenth.format(value))} °C`, 0.1],
  mem_free: ["Free memory", bytes, 1],
  rssi: ["Signal (rssi)", (value) => `${signed(whole.format(value))} dBm`, 1],
}));
const titleOf = (metric) => UNITS.get(metric)?.[0] ?? visible(metric);
const formatOf = (metric) => UNITS.get(metric)?.[1] ?? plain;
const finestOf = (metric) => UNITS.get(metric)?.[2] ?? 0;

// A button that names a device and shows it.
function deviceButton(index) {
  const name = typeof index === "number" ? visible(data.devices.id[index]) : visible(index);
  if (typeof index !== "number") return element("span", "open", name || "no device");
  const button = element("button", "open", name);
  button.type = "button";
  button.dataset.device = index;
  return button;
}

// Show `rows` up to a limit, and a button for the rest.
function listed(rows, make, target, button, first, what) {
  let shown = first;
  const draw = () => {
    target.replaceChildren(...rows.slice(0, shown).map(make));
    button.hidden = rows.length <= shown;
    button.textContent = `Show ${rows.length - shown <= 200 ? `all ${count(rows.length)}` : "200 more"} ${what}`;
  };
  button.onclick = () => {
    const before = shown;
    shown += Math.min(200, rows.length - shown);
    draw();
    target.children[before]?.querySelector("button")?.focus();
  };
  draw();
}
