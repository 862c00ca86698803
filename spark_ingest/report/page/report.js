// The report: data.py's figures as tiles, tables and charts, and the lines of a selected device.
import { ago, byId, bytes, count, day, duration, make, metricFormat, moment, pill, percent, plain, setZone, clock, visible } from "./dom.js";
import { Table, local } from "./table.js";
import { Chart } from "./chart.js";

setZone("UTC");
const data = JSON.parse(byId("data").textContent);
const { devices, totals } = data;
const now = data.now * 1000;
const past = (seconds) => (data.now - seconds < 60 ? "just now" : ago(seconds * 1000, now));
const stamp = (seconds) => `${day(seconds * 1000)} ${new Date(seconds * 1000).getUTCFullYear()}, ${clock(seconds * 1000)} UTC`;
const when = (seconds) => moment(seconds * 1000);
const FORMATS = new Map(Object.entries({
  count, plain, duration, bytes, V: metricFormat("supply_v"), "°C": metricFormat("temp_c"), dBm: metricFormat("rssi"),
}));

// Tables

const indexOf = new Map(devices.id.map((name, i) => [name, i]));
// Null where a device does not number its readings: nobody can say, which a dash does not tell from none.
const NUMBERED = ["missing", "dropped", "duplicates"];
const FIGURES = [
  ["seen", "Last seen", past], ["readings", "Readings", count], ["missing", "Missing", count], ["dropped", "Dropped", count],
  ["duplicates", "Duplicates", count], ["quarantined", "Quarantined", count], ["boots", "Boots", count],
  ["reboots", "Reboots 24 h", count], ["behind", "Clock", (behind) => `${behind} h behind`], ["p50", "Delay p50", duration],
  ["p95", "Delay p95", duration], ["clock", "Clock right", percent], ["supply_v", "Battery", FORMATS.get("V")],
  ["temp_c", "Temp.", FORMATS.get("°C")], ["mem_free", "Memory", bytes], ["rssi", "rssi", FORMATS.get("dBm")],
];
let selected = null;

// A button that names a device and shows it; a text for a device without a row.
function deviceButton(name) {
  if (!indexOf.has(name)) return make("span", { class: "open" }, visible(name || "no device"));
  return make("button", { type: "button", class: "open", "data-device": indexOf.get(name) }, visible(name));
}

function markSelected() {
  for (const button of document.querySelectorAll("[data-device]")) {
    const row = button.closest("tr");
    if (Number(button.dataset.device) === selected) row?.setAttribute("aria-current", "true");
    else row?.removeAttribute("aria-current");
  }
}

function listing(id, label, columns, rows, first, empty) {
  const table = new Table({ label, columns, source: local(rows), first, empty, drawn: markSelected });
  byId(id).append(table.node);
  return table;
}

function deviceTable() {
  const rows = devices.id.map((_, i) => Object.fromEntries(Object.entries(devices).map(([key, column]) => [key, column[i]])));
  const named = (name, { link, health }) => {
    // Offline by its status, although its readings are not old enough to call it that.
    const said = { goodbye: "said goodbye", lost: "disconnected" }[link];
    return make("span", {}, deviceButton(name), said && health !== "offline" ? make("span", { class: "tag" }, said) : null);
  };
  const columns = [
    { key: "id", title: "Device", write: named },
    { key: "health", title: "Health", write: (health) => pill(health) },
    { key: "group", title: "Group" },
    ...FIGURES.map(([key, title, write]) => ({ key, title, write, right: true, none: NUMBERED.includes(key) ? "not known" : "–" })),
    { key: "fw", title: "Firmware" },
  ].filter(({ key }) => devices[key]);
  const table = listing("device-rows", "Devices", columns, rows, 15, "No device matches.");
  const search = () => {
    const words = byId("search").value.trim().toLowerCase();
    const found = rows.filter((row) => ["id", "health", "group", "fw"].some((key) => visible(row[key] ?? "").toLowerCase().includes(words)));
    byId("matched").textContent = words ? `${count(found.length)} of ${count(rows.length)}` : `${count(rows.length)} in all`;
    table.source = local(found);
    table.reload();
  };
  byId("search").oninput = search;
  search();
}

function alertTable() {
  const kinds = new Map(Object.entries({ offline: "offline", gap: "gaps", reboot_loop: "rebooting", memory_falling: "memory", quarantined: "quarantined" }));
  const rows = data.alerts.map((row) => ({ ...row, rule: row.rule ?? row.kind, over: Boolean(row.until) }));
  const left = data.alerts_total - rows.length;
  byId("alerts-note").textContent = rows.length
    ? `${count(totals.alerts)} open, ${count(data.alerts_total - totals.alerts)} over${left ? `; ${count(left)} are not listed` : ""}` : "";
  listing("alert-rows", "Alerts", [
    { key: "rule", title: "Alert", write: (name, row) => pill(row.until ? "absent" : kinds.get(row.kind) ?? "late", name) },
    { key: "device", title: "Device", write: deviceButton },
    { key: "text", title: "What" },
    { key: "since", title: "Since", write: (at) => `${when(at)}, ${past(at)}`, right: true },
    { key: "until", title: "Until", write: when, right: true },
  ], rows, 6, "No alerts.");
}

function gapTable() {
  const states = new Map(Object.entries({
    missing: "may still come", dropped: "dropped on the device", quarantined: "came, and could not be read", earlier: "before the collector",
  }));
  listing("gap-rows", "Largest gaps", [
    { key: "device", title: "Device", write: deviceButton },
    { key: "missing", title: "Missing", write: count, right: true },
    { key: "first", title: "seq", write: (from, { last }) => (from === last ? `${from}` : `${from} – ${last}`), right: true },
    { key: "boot", title: "Boot" },
    { key: "state", title: "State", write: (state) => states.get(state) ?? "closed", none: "closed" },
    { key: "since", title: "Since", write: when, right: true },
  ], data.gaps, 8, "No gaps.");
  const left = data.gaps_total - data.gaps.length;
  byId("gaps-note").textContent = left ? `${count(left)} smaller ones are not listed` : "";
}

function tiles() {
  const offline = (devices.health ?? []).filter((word) => word === "offline").length;
  const came = totals.readings + totals.duplicates;
  const silent = [[totals.goodbye, "said goodbye"], [totals.lost, "lost"]].filter(([n]) => n).map(([n, word]) => `${count(n)} ${word}`);
  byId("tiles").append(...[
    ["Devices", totals.devices, offline ? `${count(offline)} offline` : "none offline"],
    ["Online", totals.online, silent.join(", ") || "by their status"],
    ["Readings", totals.readings, "each stored once"],
    ["Missing", totals.missing, `and ${count(totals.dropped)} dropped on devices`, totals.missing && "warn"],
    ["Duplicates", totals.duplicates, `dropped, ${percent(came ? totals.duplicates / came : 0)} of what came`],
    ["Open gaps", totals.gaps, totals.gaps ? "late readings may fill them" : "every seq arrived", totals.gaps && "warn"],
    ["Open alerts", totals.alerts, totals.alerts ? "see below" : "all quiet", totals.alerts && "bad"],
  ].map(([title, figure, note, tone]) => make("div", { class: `tile ${tone || ""}` }, make("h2", {}, title), make("p", { class: "figure" }, count(figure)), make("p", { class: "quiet" }, note))));
}

// Charts

// A device's line as data.py wrote it: 16 bits a step between its lowest and highest value.
function decoded([low, high, text]) {
  const levels = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  return [...new Uint16Array(levels.buffer)].map((level) => (level === 65535 ? null : low * (1 - level / 65534) + high * (level / 65534)));
}

const charts = [];

// spec: title, unit, format, note, log, zero, series [{name, tone, values}], band {low, high}; start, step, count.
function chartOf(host, spec) {
  const made = new Chart({ title: visible(spec.title), unit: spec.unit, write: FORMATS.get(spec.format), log: spec.log, zero: spec.zero, step: spec.step * 1000 });
  if (spec.metric) made.node.dataset.metric = spec.metric;
  byId(host).append(made.node);
  fill(made, spec);
  return made;
}

function fill(chart, { start, step, count: steps, series, band, note }) {
  // A point stands for its step, so it is drawn in the middle of it.
  const x = Array.from({ length: steps }, (_, at) => (start + (at + 0.5) * step) * 1000);
  chart.rest = note ?? "";
  chart.set(x, series.map((one, at) => (band && !at ? { ...one, ...band, band: "p10 to p90" } : one)), start * 1000, (start + steps * step) * 1000);
}

// The chart of a metric with the line of a device, null for the fleet alone.
function ofDevice(metric, device) {
  if (device === null) return { ...metric, note: `${count(metric.devices)} device${metric.devices === 1 ? "" : "s"}` };
  const name = visible(devices.id[device]);
  const own = metric.lines[device];
  if (own) return { ...metric, series: [{ ...metric.series[0], tone: "quiet", dashed: true }, { name, tone: "b", values: decoded(own) }] };
  const kept = Object.keys(metric.lines).length;
  return { ...metric, note: kept < metric.devices ? `Lines are kept for ${count(kept)} of ${count(metric.devices)} devices.` : `${name} sent none in this time.` };
}

function select(device, jump) {
  selected = device;
  const name = device === null ? "" : devices.id[device];
  byId("metrics-title").textContent = device === null ? "Metrics of the fleet" : visible(name);
  byId("clear").hidden = byId("facts").hidden = device === null;
  byId("facts").replaceChildren(...FIGURES.filter(([key]) => device !== null && devices[key]).map(([key, title, write]) => {
    const value = devices[key][device];
    return make("div", {}, make("dt", {}, title), make("dd", {}, value !== null ? write(value) : NUMBERED.includes(key) ? "not known" : "–"));
  }));
  for (const [metric, chart] of charts) fill(chart, ofDevice(metric, device));
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
for (const spec of data.charts) chartOf("charts", spec);
for (const metric of data.metrics) charts.push([metric, chartOf("metric-charts", ofDevice(metric, null))]);
fromAddress();
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-device]");
  if (button) select(Number(button.dataset.device), true);
});
byId("clear").onclick = () => select(null, true);
addEventListener("hashchange", fromAddress);
document.body.dataset.state = "ready";
