// Draws the page from its data: tiles, tables that sort and search, charts, and the lines of a selected device.
// Everything that a device said reaches the page as text, never as markup.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const { devices, totals } = data;

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// A name with what cannot be seen, or would turn the text around, made visible.
function visible(name) {
  return String(name).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (mark) => `\\u{${mark.codePointAt(0).toString(16)}}`);
}

// Numbers and times

const digits = (most, least = 0) => new Intl.NumberFormat("en", { maximumFractionDigits: most, minimumFractionDigits: least }).format;
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format;
const count = (value) => (Math.abs(value) < 1e7 ? digits(0) : compact)(value);
const percent = (share) => (share && share < 0.001 ? "under 0.1 %" : `${digits(1)(Math.floor(share * 1000) / 10)} %`);

// As many digits as tell neighbours apart.
function plain(value) {
  const size = Math.abs(value);
  if (size >= 1e9 || (size && size < 0.001)) return value.toExponential(1);
  if (size >= 100000) return compact(value);
  return digits(size >= 1000 ? 0 : size >= 10 ? 1 : size >= 0.1 || !size ? 2 : 4)(value);
}

// The largest of the units of which there is one, with a digit after the point for fewer than ten.
function scaled(value, units) {
  const [size, name] = units.find(([least]) => Math.abs(value) >= least) ?? units.at(-1);
  return `${digits(Math.abs(value) < 10 * size && size > 1 ? 1 : 0)(value / size)} ${name}`;
}

const duration = (ms) => scaled(ms, [[864e5, "d"], [36e5, "h"], [6e4, "min"], [1e3, "s"], [1, "ms"]]);
const FORMATS = new Map(Object.entries({
  count, plain, duration,
  bytes: (value) => scaled(value, [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]),
  V: (value) => `${digits(2, 2)(value)} V`,
  "°C": (value) => `${digits(1, 1)(value)} °C`,
  dBm: (value) => `${digits(0)(value)} dBm`,
}));

const timeFormat = (options) => new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", ...options });
const [date, hours, precise] = [{ day: "numeric", month: "short" }, { timeStyle: "short" }, { timeStyle: "medium" }].map(timeFormat);
const day = (seconds) => date.format(seconds * 1000);
const clock = (seconds, step = 60) => (step < 60 ? precise : hours).format(seconds * 1000);
const moment = (seconds, step = 60) => `${day(seconds)} ${clock(seconds, step)}`;
const stamp = (seconds) => `${day(seconds)} ${new Date(seconds * 1000).getUTCFullYear()}, ${clock(seconds)} UTC`;
const ago = (seconds) => (data.now - seconds < 60 ? "just now" : `${duration((data.now - seconds) * 1000)} ago`);

// Tables

const indexOf = new Map(devices.id.map((name, i) => [name, i]));

// A button that names a device and shows it; a text for a device without a row.
function deviceButton(name) {
  if (!indexOf.has(name)) return element("span", "open", visible(name || "no device"));
  const button = element("button", "open", visible(name));
  button.type = "button";
  button.dataset.device = indexOf.get(name);
  return button;
}

const pill = (words, tone) => element("span", `pill ${tone}`, visible(words));
const HEALTH = ["offline", "rebooting", "quarantined", "memory", "gaps", "late", "ok"];
const toneOf = (health) => (HEALTH.includes(health) ? health : "late");
// Null where a device does not number its readings: nobody can say, which a dash does not tell from none.
const NUMBERED = ["missing", "dropped", "duplicates"];

// A table that sorts by its headings. columns: key, title, write (value, row) → text or node, right (a number).
// The rows keep their order among equal values; unknown values come last.
function listing(host, columns, rows, first, what) {
  const found = { sort: null, down: false, rows, shown: first };
  const [table, head, body] = [element("table"), element("tr"), element("tbody")];
  const more = element("button", "button more");
  more.type = "button";
  for (const { key, title, right } of columns) {
    const cell = element("th", right ? "n" : "");
    cell.scope = "col";
    cell.dataset.key = key;
    const button = element("button", "head-button", title);
    button.type = "button";
    button.onclick = () => {
      found.down = found.sort === key ? !found.down : Boolean(right);
      found.sort = key;
      found.draw();
    };
    cell.append(button);
    head.append(cell);
  }
  function cellOf({ key, write, right }, row) {
    const cell = element("td", right ? "n" : "");
    const value = row[key] ?? null;
    cell.dataset.key = key;
    cell.append(value === null ? (NUMBERED.includes(key) ? "not known" : "–") : write ? write(value, row) : visible(value));
    return cell;
  }
  found.draw = () => {
    const { sort, down } = found;
    const order = sort === null ? found.rows : [...found.rows].sort((one, other) => {
      const [a, b] = [one[sort] ?? null, other[sort] ?? null];
      if (a === null || b === null) return (a === null) - (b === null);
      return (down ? -1 : 1) * (a < b ? -1 : a > b ? 1 : 0);
    });
    for (const cell of head.children) {
      if (cell.dataset.key === sort) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
    body.replaceChildren(...order.slice(0, found.shown).map((row) => {
      const line = element("tr", row.until ? "over" : "");
      line.append(...columns.map((column) => cellOf(column, row)));
      return line;
    }));
    table.hidden = !order.length;
    more.hidden = order.length <= found.shown;
    more.textContent = `Show all ${count(order.length)} ${what}`;
    markSelected();
  };
  more.onclick = () => { found.shown = Infinity; found.draw(); };
  const top = element("thead");
  top.append(head);
  table.append(top, body);
  host.append(table, more);
  found.draw();
  return found;
}

let selected = null;

function markSelected() {
  for (const button of document.querySelectorAll("[data-device]")) {
    const row = button.closest("tr");
    if (Number(button.dataset.device) === selected) row?.setAttribute("aria-current", "true");
    else row?.removeAttribute("aria-current");
  }
}

const FIGURES = [
  ["seen", "Last seen", ago], ["readings", "Readings", count], ["missing", "Missing", count], ["dropped", "Dropped", count],
  ["duplicates", "Duplicates", count], ["quarantined", "Quarantined", count], ["boots", "Boots", count],
  ["reboots", "Reboots 24 h", count], ["behind", "Clock", (behind) => `${behind} h behind`], ["p50", "Delay p50", duration],
  ["p95", "Delay p95", duration], ["clock", "Clock right", percent], ["supply_v", "Battery", FORMATS.get("V")],
  ["temp_c", "Temp.", FORMATS.get("°C")], ["mem_free", "Memory", FORMATS.get("bytes")], ["rssi", "rssi", FORMATS.get("dBm")],
];

function deviceTable() {
  const rows = devices.id.map((_, i) => Object.fromEntries(Object.entries(devices).map(([key, column]) => [key, column[i]])));
  const named = (name, { link, health }) => {
    const cell = element("span");
    cell.append(deviceButton(name));
    // Offline by its status, although its readings are not old enough to call it that.
    const said = { goodbye: "said goodbye", lost: "disconnected" }[link];
    if (said && health !== "offline") cell.append(element("span", "tag", said));
    return cell;
  };
  const columns = [
    { key: "id", title: "Device", write: named },
    { key: "health", title: "Health", write: (health) => pill(health, toneOf(health)) },
    { key: "group", title: "Group" },
    ...FIGURES.map(([key, title, write]) => ({ key, title, write, right: true })),
    { key: "fw", title: "Firmware" },
  ].filter(({ key }) => devices[key]);
  const list = listing(byId("device-rows"), columns, rows, 15, "devices");
  const search = () => {
    const words = byId("search").value.trim().toLowerCase();
    list.rows = rows.filter((row) => ["id", "health", "group", "fw"].some((key) => visible(row[key] ?? "").toLowerCase().includes(words)));
    byId("matched").textContent = words ? `${count(list.rows.length)} of ${count(rows.length)}` : `${count(rows.length)} in all`;
    byId("none").hidden = list.rows.length > 0;
    list.draw();
  };
  byId("search").oninput = search;
  search();
}

function alertTable() {
  const kinds = { offline: "offline", gap: "gaps", reboot_loop: "rebooting", memory_falling: "memory", quarantined: "quarantined" };
  const tones = new Map(Object.entries(kinds));
  const since = { key: "since", title: "Since", write: (at) => `${moment(at)}, ${ago(at)}`, right: true };
  const rule = { key: "rule", title: "Alert", write: (name, row) => pill(name, row.until ? "" : tones.get(row.kind) ?? "late") };
  const until = { key: "until", title: "Until", write: (at) => moment(at), right: true };
  const columns = [rule, { key: "device", title: "Device", write: deviceButton }, { key: "text", title: "What" }, since, until];
  const rows = data.alerts.map((row) => ({ ...row, rule: row.rule ?? row.kind }));
  const left = data.alerts_total - rows.length;
  byId("alerts-note").textContent = rows.length
    ? `${count(totals.alerts)} open, ${count(data.alerts_total - totals.alerts)} over${left ? `; ${count(left)} are not listed` : ""}`
    : "No alerts.";
  listing(byId("alert-rows"), columns, rows, 6, "alerts");
}

function gapTable() {
  const states = new Map(Object.entries({
    missing: "may still come", dropped: "dropped on the device", quarantined: "came, and could not be read", earlier: "before the collector",
  }));
  listing(byId("gap-rows"), [
    { key: "device", title: "Device", write: deviceButton },
    { key: "missing", title: "Missing", write: count, right: true },
    { key: "first", title: "seq", write: (from, { last }) => (from === last ? `${from}` : `${from} – ${last}`), right: true },
    { key: "boot", title: "Boot" },
    { key: "state", title: "State", write: (state) => states.get(state) ?? "closed" },
    { key: "since", title: "Since", write: (at) => moment(at), right: true },
  ], data.gaps, 8, "gaps");
  const left = data.gaps_total - data.gaps.length;
  byId("gaps-note").textContent = data.gaps.length ? (left ? `${count(left)} smaller ones are not listed` : "") : "No gaps.";
}

function tiles() {
  const offline = (devices.health ?? []).filter((word) => word === "offline").length;
  const came = totals.readings + totals.duplicates;
  const silent = [[totals.goodbye, "said goodbye"], [totals.lost, "lost"]].filter(([n]) => n).map(([n, word]) => `${count(n)} ${word}`);
  for (const [title, figure, note, tone] of [
    ["Devices", totals.devices, offline ? `${count(offline)} offline` : "none offline"],
    ["Online", totals.online, silent.join(", ") || "by their status"],
    ["Readings", totals.readings, "each stored once"],
    ["Missing", totals.missing, `and ${count(totals.dropped)} dropped on devices`, totals.missing && "warn"],
    ["Duplicates", totals.duplicates, `dropped, ${percent(came ? totals.duplicates / came : 0)} of what came`],
    ["Open gaps", totals.gaps, totals.gaps ? "late readings may fill them" : "every seq arrived", totals.gaps && "warn"],
    ["Open alerts", totals.alerts, totals.alerts ? "see below" : "all quiet", totals.alerts && "bad"],
  ]) {
    const tile = element("div", `tile ${tone || ""}`);
    tile.append(element("h2", "", title), element("p", "figure", count(figure)), element("p", "quiet", note));
    byId("tiles").append(tile);
  }
}

// Charts

const numbers = (values) => values.filter((value) => value !== null);
const TIMES = [1, 2, 5, 10, 15, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 2592000, 31536000];
const DURATIONS = [1, 10, 100, 1e3, 1e4, 6e4, 6e5, 36e5, 36e6, 864e5, 6048e5, 31536e6];

// Return the marks of an axis, and the share of its height that a value has.
function scaleOf(values, { log, zero }) {
  let low = Math.min(...values, ...(zero ? [0] : []));
  let high = Math.max(...values, ...(zero ? [0] : []));
  if (!values.length || low === high) [low, high] = values.length ? [zero ? 0 : low - 1, high + 1] : [0, 1];
  if (log) {
    const first = Math.max(0, DURATIONS.findLastIndex((tick) => tick <= low));
    const ticks = DURATIONS.slice(first, Math.max(first, DURATIONS.findIndex((tick) => tick >= high)) + 2);
    const at = (value) => Math.log(Math.max(value, ticks[0]) / ticks[0]) / Math.log(ticks.at(-1) / ticks[0]);
    return { ticks, at };
  }
  // The smallest of 1, 2, 5, 10 times a power of ten that four of them span the range.
  const power = 10 ** Math.floor(Math.log10((high - low) / 4));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one * 4 >= high - low);
  if (!step || !Number.isFinite(high - low)) return { ticks: [low, high], at: (value) => (value > low ? 1 : 0) };
  const bottom = Math.floor(low / step) * step;
  const lines = Math.ceil((high - bottom) / step);
  return { ticks: Array.from({ length: lines + 1 }, (_, i) => bottom + i * step), at: (value) => (value - bottom) / (lines * step) };
}

// Runs of values without a gap, as [[index, value], …].
function runsOf(values) {
  const found = [];
  values.forEach((value, i) => {
    if (value === null) return;
    if (i && values[i - 1] !== null) found.at(-1).push([i, value]);
    else found.push([[i, value]]);
  });
  return found;
}

class Chart {
  // spec: title, unit, format, note, log, zero, series [{name, tone, values}], band {low, high}; start, step, count.
  constructor(host, spec) {
    const [figure, head] = [element("figure", "card"), element("div", "head")];
    this.legend = element("p", "legend");
    const title = element("h3", "", visible(spec.title));
    title.append(element("small", "quiet", ` ${spec.unit}`));
    head.append(title, this.legend);
    this.plot = element("div", "plot");
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "img");
    this.readout = element("p", "readout quiet");
    figure.append(head, this.plot, this.readout);
    if (spec.metric) figure.dataset.metric = spec.metric;
    host.append(figure);
    this.set(spec);
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.plot.onpointermove = (event) => this.read(Math.floor(((event.offsetX - this.left) / this.wide) * spec.count));
    this.plot.onpointerleave = this.plot.onblur = () => this.read(null);
    this.plot.onkeydown = ({ key }) => {
      const to = { ArrowLeft: (this.cursor ?? spec.count) - 1, ArrowRight: (this.cursor ?? -1) + 1, Escape: null }[key];
      if (to !== undefined) this.read(to);
    };
  }

  set(spec) {
    this.spec = spec;
    const keys = [...(spec.band ? [{ name: "p10 to p90", tone: "band" }] : []), ...spec.series];
    this.legend.replaceChildren(...keys.map(({ name, tone }) => element("span", `key ${tone}`, name)));
    const write = FORMATS.get(spec.format);
    const said = spec.series.map(({ name, values }) => {
      const known = numbers(values);
      return known.length ? `${name}: ${write(Math.min(...known))} to ${write(Math.max(...known))}` : `${name}: nothing`;
    });
    this.plot.setAttribute("aria-label", `${visible(spec.title)}, ${spec.unit}. ${said.join("; ")}. Arrow keys read it step by step.`);
    this.draw();
  }

  draw() {
    const { spec, plot } = this;
    const [width, height] = [plot.clientWidth, plot.clientHeight];
    if (!width || !height) return;
    const values = [...spec.series.map((one) => one.values), ...Object.values(spec.band ?? {})].flatMap(numbers);
    const scale = scaleOf(values, spec);
    const labels = scale.ticks.map(FORMATS.get(spec.format));
    this.left = 14 + 6.6 * Math.max(...labels.map((label) => label.length));
    this.wide = Math.max(1, width - this.left - 8);
    const high = height - 34;
    this.y = (value) => 10 + high * (1 - scale.at(value));
    this.x = (index) => this.left + (this.wide * (index + 0.5)) / spec.count;
    const picture = shape("svg", { width, height, "aria-hidden": "true" });
    scale.ticks.forEach((tick, i) => {
      picture.append(shape("path", { class: "grid", d: `M${this.left} ${this.y(tick)}h${this.wide}` }));
      picture.append(shape("text", { x: this.left - 8, y: this.y(tick) + 4, "text-anchor": "end" }, labels[i]));
    });
    const { start, step, count: steps } = spec;
    const every = TIMES.find((one) => one >= (step * steps * 80) / this.wide) ?? TIMES.at(-1);
    for (let at = Math.ceil(start / every) * every; at <= start + step * steps; at += every) {
      const x = this.left + (this.wide * (at - start)) / (step * steps);
      const label = every < 86400 && at % 86400 ? clock(at, every) : day(at);
      if (x < this.left + this.wide - 20) picture.append(shape("text", { x, y: height - 6, "text-anchor": "middle" }, label));
    }
    const points = (run) => run.map(([i, value]) => `${this.x(i).toFixed(1)} ${this.y(value).toFixed(1)}`);
    for (const run of spec.band ? runsOf(spec.band.low) : []) {
      const top = run.map(([i]) => [i, spec.band.high[i]]).reverse();
      picture.append(shape("path", { class: "bandfill", d: `M${points(run).join("L")}L${points(top).join("L")}Z` }));
    }
    for (const { values: line, tone } of spec.series) {
      for (const run of runsOf(line)) {
        if (run.length === 1) picture.append(shape("circle", { class: `dot ${tone}`, cx: this.x(run[0][0]), cy: this.y(run[0][1]), r: 2.5 }));
        picture.append(shape("path", { class: `line ${tone}`, d: `M${points(run).join("L")}` }));
      }
    }
    this.mark = shape("path", { class: "cursor" });
    this.high = high;
    picture.append(this.mark);
    plot.replaceChildren(picture, ...(values.length ? [] : [element("p", "empty", "Nothing in this time")]));
    this.read(null);
  }

  // Say what a step has; null: the note.
  read(index) {
    const { spec } = this;
    this.cursor = index === null ? null : Math.max(0, Math.min(spec.count - 1, index));
    this.mark.setAttribute("d", this.cursor === null ? "" : `M${this.x(this.cursor)} 10v${this.high}`);
    if (this.cursor === null) {
      this.readout.textContent = spec.note ?? "";
      return;
    }
    const write = FORMATS.get(spec.format);
    const at = spec.start + spec.step * this.cursor;
    const said = spec.series.filter(({ values }) => values[this.cursor] !== null).map(({ name, values }) => `${name} ${write(values[this.cursor])}`);
    if (spec.band && spec.band.low[this.cursor] !== null) said.push(`p10 to p90 ${write(spec.band.low[this.cursor])} to ${write(spec.band.high[this.cursor])}`);
    this.readout.textContent = `${moment(at, spec.step)} to ${clock(at + spec.step, spec.step)}: ${said.join(", ") || "nothing"}`;
  }
}

// A device's line as data.py wrote it: 16 bits a step between its lowest and highest value.
function decoded([low, high, text]) {
  const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  return [...new Uint16Array(bytes.buffer)].map((level) => (level === 65535 ? null : low * (1 - level / 65534) + high * (level / 65534)));
}

const charts = [];

// The chart of a metric with the line of a device, null for the fleet alone.
function ofDevice(metric, device) {
  if (device === null) return { ...metric, note: `${count(metric.devices)} device${metric.devices === 1 ? "" : "s"}` };
  const name = visible(devices.id[device]);
  const own = metric.lines[device];
  if (own) return { ...metric, series: [{ ...metric.series[0], tone: "quiet" }, { name, tone: "b", values: decoded(own) }] };
  const kept = Object.keys(metric.lines).length;
  return { ...metric, note: kept < metric.devices ? `Lines are kept for ${count(kept)} of ${count(metric.devices)} devices.` : `${name} sent none in this time.` };
}

function select(device, jump) {
  selected = device;
  const name = device === null ? "" : devices.id[device];
  byId("metrics-title").textContent = device === null ? "Metrics of the fleet" : visible(name);
  byId("clear").hidden = byId("facts").hidden = device === null;
  byId("facts").replaceChildren(...FIGURES.filter(([key]) => device !== null && devices[key]).map(([key, title, write]) => {
    const pair = element("div");
    const value = devices[key][device];
    pair.append(element("dt", "", title), element("dd", "", value !== null ? write(value) : NUMBERED.includes(key) ? "not known" : "–"));
    return pair;
  }));
  for (const [metric, chart] of charts) chart.set(ofDevice(metric, device));
  markSelected();
  history.replaceState(null, "", device === null ? "#" : `#device=${encodeURIComponent(name)}`);
  if (jump) {
    byId("metrics").scrollIntoView();
    byId("metrics-title").focus({ preventScroll: true });
  }
}

// Select the device that the address names, if it names one.
function fromAddress() {
  try {
    const name = decodeURIComponent(/^#device=(.*)/.exec(location.hash)?.[1] ?? "");
    select(indexOf.get(name) ?? null);
  } catch {
    select(null); // Not written by this page.
  }
}

byId("span").textContent = data.as_of ? `${duration(Math.max(data.as_of - data.from, 1) * 1000)} to ${stamp(data.as_of)}` : "no readings yet";
byId("made").textContent = `Made by umqtt report at ${stamp(data.made)}.`;
byId("nothing").hidden = totals.devices > 0;
for (const part of document.querySelectorAll("main > section:not(.tiles)")) part.hidden = !totals.devices;
tiles();
alertTable();
deviceTable();
gapTable();
for (const spec of data.charts) new Chart(byId("charts"), spec);
for (const metric of data.metrics) charts.push([metric, new Chart(byId("metric-charts"), ofDevice(metric, null))]);
fromAddress();
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-device]");
  if (button) select(Number(button.dataset.device), true);
});
byId("clear").onclick = () => select(null, true);
addEventListener("hashchange", fromAddress);
document.body.dataset.state = "ready";
