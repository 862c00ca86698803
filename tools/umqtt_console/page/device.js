// One device: now, over time, its boots and crashes, what is missing, and where one of its readings is.
import { Chart } from "./chart.js";
import { Table, local } from "./table.js";
import { actCard, deviceActs } from "./acts.js";
import { ago, bytes, count, duration, make, metricFormat, metricTitle, moment, percent, pill, plain, precise, setText, since, stamp, visible } from "./dom.js";

const SPANS = { "1 h": 36e5, "6 h": 216e5, "24 h": 864e5, "7 d": 6048e5, "30 d": 2592e6 };
const FIRST_METRICS = ["temp_c", "supply_v", "rssi", "mem_free", "outbox"];
const MOST_CHARTS = 12;

export async function deviceView(host, parameters, app) {
  const id = parameters.get("id") ?? "";
  if (!id) {
    app.go("/fleet", {}, { replace: true, draw: true });
    return {};
  }
  let data = await app.api("device", { device: id });
  const live = new Map();
  const newest = await app.api("newest", { filter: `fleet/${id}/#` }).catch(() => ({ messages: [] }));
  for (const one of newest.messages) live.set(one.topic, one);
  document.title = `${visible(id)} · umqtt`;
  // Devices say nothing new for hours, and a chart that ends in a hole tells less than one that ends at the newest value.
  const last = () => (data.last && Date.now() - data.last > 36e5 ? data.last : Date.now());
  const range = { from: Number(parameters.get("from")) || null, to: Number(parameters.get("to")) || null, span: parameters.get("span") ?? "24 h" };
  if (!(range.span in SPANS)) range.span = "24 h";

  const { device } = data;
  const known = device !== null;
  const header = make("div", { class: "top" });
  const alerts = make("div", { class: "stack" });
  const liveCard = make("section", { class: "card", "aria-label": "Now" });
  const facts = make("section", { class: "card", "aria-label": "State" });
  const charts = make("section", { class: "pair", "aria-label": "Charts" });
  const spans = make("div", { class: "span", role: "group", "aria-label": "Time shown" });
  const shown = make("p", { class: "quiet", role: "status" });
  // What was ordered here, with the reply.
  const acts = make("div", { class: "stack" });
  const cards = new Map();
  const buttons = make("div", { class: "row" });
  const showAct = (act) => {
    const card = actCard(app, act);
    cards.set(act.id, card);
    acts.prepend(card.node);
  };
  deviceActs(buttons, id, app, showAct);
  host.append(header, alerts, acts, liveCard, facts);
  if (!known && !data.boots.length && !live.size) {
    alerts.append(make("p", { class: "banner warn" }, "No table knows this device, and nothing of it has come from the broker yet."));
  }
  host.append(make("div", { class: "top" }, make("h2", {}, "Over time"), make("div", { class: "row" }, shown, spans)), charts);

  // Charts

  const names = () => [...FIRST_METRICS.filter((name) => data.metrics.includes(name)), ...data.metrics.filter((name) => !FIRST_METRICS.includes(name))].slice(0, MOST_CHARTS);
  const drawn = new Map();
  const bounds = () => (range.from && range.to ? [range.from, range.to] : [last() - SPANS[range.span], last()]);
  function zoom(from, to) {
    Object.assign(range, { from, to });
    app.go("/device", { id, from, to, span: range.span }, { replace: true });
    drawSpans();
    drawCharts();
  }
  function drawSpans() {
    spans.replaceChildren(...Object.keys(SPANS).map((name) => make("button", { type: "button", class: "button",
      "aria-pressed": String(!range.from && range.span === name), onclick: () => { range.span = name; zoom(null, null); } }, name)),
    ...range.from ? [make("button", { type: "button", class: "button", "aria-pressed": "true", onclick: () => zoom(null, null) }, "Zoomed ✕")] : []);
    const [from, to] = bounds();
    setText(shown, `${moment(from)} to ${moment(to)}`);
  }
  async function drawCharts() {
    const [from, to] = bounds();
    const wanted = [...names().map((name) => [name, metricTitle(name), metricFormat(name), ""]),
      ["own:delay", "Delay", (value) => duration(value * 1000), "From the reading, by the device's clock, to its receipt: an outage is a slope that begins high."],
      ["own:waiting", "Backlog", (value) => count(value), "Readings taken and not yet received: it rises during an outage, and its fall is the drain."]];
    await Promise.all(wanted.map(async ([name, title, write, note]) => {
      if (!drawn.has(name)) {
        const made = new Chart({ title, write, note, zoomed: zoom, group: "device", zero: name.startsWith("own:"), whole: name === "own:waiting" });
        drawn.set(name, made);
        charts.append(made.node);
      }
      const line = await app.api("series", { device: id, name, start: Math.round(from), end: Math.round(to) }).catch((error) => error);
      const chart = drawn.get(name);
      if (line instanceof Error) chart.plot.replaceChildren(make("p", { class: "empty" }, visible(line.message)));
      else chart.set(line.x, [{ name: title, values: line.y, low: line.low, high: line.high, tone: name === "own:waiting" ? "c" : "a" }], from, to);
    }));
  }

  // Tables

  const section = (title, note, ...content) => make("section", { class: "card", "aria-label": title },
    make("div", { class: "head" }, make("h2", {}, title), note ? make("p", { class: "quiet" }, note) : null), ...content);
  const lists = make("div", { class: "stack" });
  function drawLists() {
    const table = (label, columns, rows, empty) => new Table({ label, columns, source: local(rows), first: 8, empty }).node;
    const time = (key, title) => ({ key, title, write: (value) => since(value) });
    const number = (key, title) => ({ key, title, right: true, write: count });
    lists.replaceChildren(
      data.alerts.length ? section("Alerts", "open ones first", table("Alerts", [
        { key: "until", title: "State", write: () => "" }, { key: "rule", title: "Rule" }, { key: "text", title: "What" }, time("since", "Since"),
      ].map((column) => (column.key === "until" ? { ...column, key: "state", write: (value) => pill(value === "open" ? "warn" : "calm", value) } : column)),
      data.alerts.map((row) => ({ ...row, state: row.until ? `over ${ago(row.until)}` : "open", over: Boolean(row.until) })))) : "",
      section("Boots", "each start, and what caused it", table("Boots", [
        { key: "number", title: "Boot", right: true, write: count }, { key: "cause", title: "Cause" }, time("first_seen", "First heard"),
        time("last_seen", "Last heard"), number("readings", "Readings"), number("missing", "Missing"), { key: "fw", title: "Firmware" },
        { key: "reason", title: "Said last" }, { key: "boot", title: "Id", write: (value) => make("code", {}, visible(value)) },
      ], data.boots, "No boot is known.")),
      data.statuses.length ? section("Links", "when it came and went, and why, as its status and its last will say", table("Links", [
        time("at", "When"), { key: "link", title: "Link", write: (value) => pill(value) }, { key: "reason", title: "Why" }, { key: "fw", title: "Firmware" },
        { key: "boot", title: "Boot", write: (value) => make("code", {}, visible(value)) },
      ], data.statuses.map((one) => ({ ...one, link: one.online ? "online" : "offline" })))) : "",
      data.gaps.length ? section("Gaps", "readings that are missing between others", table("Gaps", [
        number("missing", "Missing"), number("first", "From"), number("last", "To"), { key: "state", title: "State", write: gapState }, time("since", "Noticed"),
        { key: "boot", title: "Boot", write: (value) => make("code", {}, visible(value)) },
      ], data.gaps)) : "",
      data.texts.length ? section("Texts", "", table("Texts", [{ key: "metric", title: "Name" }, { key: "text", title: "Newest text" }, time("at", "Since")], data.texts)) : "",
      data.quarantine.length ? section("Quarantine", "messages that could not be read, the newest ones", table("Quarantine", [
        time("at", "Received"), { key: "reason", title: "Why" }, { key: "topic", title: "Topic" },
        { key: "payload", title: "Message", write: (payload) => payloadOf(payload) },
      ], data.quarantine)) : "",
    );
  }

  // What it says now

  const parsed = (leaf) => {
    const message = live.get(`fleet/${id}/${leaf}`);
    try {
      const found = JSON.parse(message?.payload.text ?? "null");
      return found && typeof found === "object" ? { ...found, at: message.at } : null;
    } catch {
      return null;
    }
  };
  function drawLive() {
    const [telemetry, reported, desired] = [parsed("telemetry"), parsed("reported"), parsed("desired")];
    const values = Object.entries(telemetry?.m ?? {}).filter(([, value]) => typeof value === "number");
    const fresh = telemetry && Date.now() - telemetry.at < 3000;
    const rows = values.map(([name, value]) => make("div", { class: fresh ? "fresh" : "" }, make("div", { class: "quiet" }, metricTitle(name)),
      make("div", { class: "value" }, metricFormat(name)(value))));
    const differing = Object.entries(desired?.args?.settings ?? {}).filter(([key, value]) => JSON.stringify(reported?.settings?.[key]) !== JSON.stringify(value));
    const broker = app.me.parts.broker;
    liveCard.replaceChildren(make("div", { class: "head" }, make("h2", {}, "Now"), make("p", { class: "quiet" },
      telemetry ? `newest message ${ago(telemetry.at)}` : broker ? "waiting for its next message" : "no broker is given")),
    make("div", { class: "live" }, rows),
    ...desired ? [make("p", { class: "quiet" }, "Settings: ", pill(differing.length ? "drift" : "as desired"),
      ` ${differing.map(([key, value]) => `${visible(key)} is ${JSON.stringify(reported?.settings?.[key])}, not ${JSON.stringify(value)}`).join("; ")}`)] : [],
    ...reported ? [make("details", {}, make("summary", { class: "quiet" }, "Settings that it reports"), make("pre", {}, JSON.stringify(reported.settings, null, 2)))] : []);
  }

  function drawHead() {
    const { device: row } = data;
    const status = data.statuses[0];
    const extra = status?.extra ?? {};
    const said = parsed("status");
    const head = [make("div", {}, app.link("/fleet", {}, { class: "quiet" }, "Fleet"), make("h1", {}, visible(id))),
      make("div", { class: "row" }, ...row ? [pill(row.health), pill(row.link, { goodbye: "said goodbye" }[row.link] ?? row.link)] : [])];
    // The buttons stay as they are: somebody may be typing there.
    if (!buttons.isConnected) header.append(...head, buttons);
    else [...header.children].slice(0, 2).forEach((node, at) => node.replaceWith(head[at]));
    const fact = (title, value, note) => (value === null || value === undefined ? null
      : make("div", {}, make("dt", {}, title), make("dd", {}, value, note ? make("div", { class: "quiet" }, note) : null)));
    const outbox = parsed("telemetry")?.m?.outbox;
    facts.replaceChildren(make("h2", {}, "State"), make("dl", { class: "facts" }, ...[
      row && fact("Last seen", row.seen ? since(row.seen) : null, row.seen && stamp(row.seen)),
      row && fact("Readings", count(row.readings ?? 0), row.duplicates === null ? "not numbered" : `${count(row.duplicates)} came twice and were dropped`),
      row && fact("Missing", row.missing === null ? "not known" : count(row.missing), row.dropped ? `${count(row.dropped)} dropped on the device` : ""),
      row && fact("Delay", row.delay_p50 === null ? null : duration(row.delay_p50), row.delay_p95 === null ? "" : `p95 ${duration(row.delay_p95)}`),
      fact("Firmware", visible(said?.fw ?? row?.fw ?? status?.fw ?? "–"), extra.slot ? `slot ${visible(extra.slot)}` : ""),
      row && fact("Boots", count(row.boots ?? 0), row.reboots ? `${count(row.reboots)} × restarted in 24 h` : "no restart in 24 h"),
      fact("Last cause", extra.cause && visible(extra.cause)),
      row && fact("Clock", row.clock === null ? null : `${percent(row.clock)} of readings`, row.behind ? `${row.behind} h behind` : "set by itself"),
      fact("Outbox", outbox === undefined || outbox === null ? null : `${count(outbox)} waiting`),
      fact("Without a broker", (said?.room_h ?? extra.room_h) === undefined ? null : `${plain(Number(said?.room_h ?? extra.room_h))} h`, "until the flash is full"),
      fact("Flash lasts", (said?.flash_years ?? extra.flash_years) === undefined ? null : `${plain(Number(said?.flash_years ?? extra.flash_years))} years`, "at this rate of writes"),
      row && fact("Free memory", row.mem_free === null ? null : bytes(row.mem_free)),
      row && fact("Signal", row.rssi === null ? null : metricFormat("rssi")(row.rssi)),
      row && fact("Battery", row.supply_v === null ? null : metricFormat("supply_v")(row.supply_v)),
      row && fact("Group", row.group && visible(row.group), row.site ? visible(row.site) : ""),
    ].filter(Boolean)));
    alerts.replaceChildren(...data.alerts.filter((one) => !one.until).map((one) =>
      make("p", { class: "banner warn" }, make("b", {}, visible(one.rule)), `: ${visible(one.text)}, since ${moment(one.since)}`)));
  }

  // The log, and where a reading is

  const log = make("div", { class: "log", role: "log", tabindex: "0", "aria-label": "Log" });
  const level = make("select", { "aria-label": "Level", onchange: drawLog }, ...["", "error", "warning", "info", "debug"].map((one) => make("option", { value: one }, one || "all levels")));
  async function drawLog() {
    const { lines } = await app.api("logs", { device: id, level: level.value });
    log.replaceChildren(...lines.map((line) => make("div", {}, make("time", { class: "none", title: stamp(line.at) }, `${moment(line.at).split(" ").slice(0, 2).join(" ")} ${precise(line.at)}`),
      make("span", { class: ["error", "warning"].includes(line.level) ? line.level : "none" }, visible(line.level ?? "")),
      make("span", {}, visible(line.text ?? ""), line.crash?.traceback ? make("pre", {}, line.crash.traceback) : null))));
    if (!lines.length) log.append(make("p", { class: "empty" }, "No lines."));
  }
  const steps = make("ol", { class: "steps", "aria-label": "Places of the reading" });
  const boot = make("input", { "aria-label": "Boot", placeholder: "boot", value: data.boots[0]?.boot ?? "", size: 22, spellcheck: "false" });
  const seq = make("input", { "aria-label": "Seq", placeholder: "seq", inputmode: "numeric", size: 10, value: String(parameters.get("seq") ?? "") });
  async function traceReading(event) {
    event?.preventDefault();
    const answer = await app.api("trace", { device: id, boot: boot.value.trim(), seq: seq.value.trim() || "0" }).catch((error) => error);
    const shape = { there: ["ok", "●"], passed: ["calm", "✓"], likely: ["warn", "▲"], lost: ["bad", "■"], unknown: ["calm", "?"], absent: ["calm", "○"] };
    steps.replaceChildren(...answer instanceof Error ? [make("li", {}, make("span"), make("span"), make("p", {}, visible(answer.message)))]
      : answer.steps.map(({ place, state, text, at }) => make("li", { class: shape[state][0] }, make("span", { class: "mark", role: "img", "aria-label": state }, shape[state][1]),
        make("b", {}, place), make("p", {}, visible(text), at ? make("span", { class: "quiet" }, ` ${stamp(at)}`) : null))));
  }
  host.append(lists, section("Where is this reading?", "flash, broker, spool, bronze, silver",
    make("form", { class: "row", onsubmit: traceReading }, boot, seq, make("button", { class: "button" }, "Trace")), steps),
  make("section", { class: "card", "aria-label": "Log" }, make("div", { class: "head" }, make("h2", {}, "Log"), level), log));

  drawHead();
  drawLive();
  drawLists();
  drawSpans();
  drawCharts();
  drawLog();
  if (parameters.get("seq")) traceReading();

  let waiting = 0;
  return {
    watch: !/[+#]/.test(id) ? `fleet/${id}/#` : "",
    message(message) {
      live.set(message.topic, message);
      clearTimeout(waiting);
      waiting = setTimeout(() => { drawLive(); drawHead(); }, 50);
    },
    act: (act) => cards.get(act.id)?.update(act),
    async refresh(versions) {
      const before = data;
      data = await app.api("device", { device: id });
      drawHead();
      if (JSON.stringify([before.boots, before.gaps, before.alerts, before.quarantine]) !== JSON.stringify([data.boots, data.gaps, data.alerts, data.quarantine])) drawLists();
      if (!range.from && (!versions || data.last !== before.last)) {
        drawSpans();
        await drawCharts();
      }
    },
    close: () => { clearTimeout(waiting); for (const chart of drawn.values()) chart.destroy(); },
  };
}

const GAPS = { missing: ["likely", "may still come"], dropped: ["absent", "dropped on the device"], quarantined: ["quarantined", "came, and could not be read"], earlier: ["unknown", "before the collector"] };
const gapState = (value) => pill(...(Object.hasOwn(GAPS, value) ? GAPS[value] : [value]));

export function payloadOf({ encoding, text }) {
  const node = make("code", { title: encoding === "hex" ? "in hex" : "" }, visible(text.length > 160 ? `${text.slice(0, 160)}…` : text));
  return node;
}

// The crashes of the fleet, by cause.
export async function crashesView(host, parameters, app) {
  const list = make("div", { class: "stack" });
  host.append(make("div", { class: "top" }, make("h1", {}, "Crashes"), make("p", { class: "quiet" }, "by the last line of the traceback, and where it was raised")), list);
  async function refresh() {
    const { crashes } = await app.api("crashes");
    list.replaceChildren(...crashes.map(({ cause, where, n, devices, device_count: several, first, last, traceback }) => make("section", { class: "card", "aria-label": "Crash" },
      make("div", { class: "head" }, make("h2", {}, visible(cause)), pill("bad", `${count(n)} × on ${count(several)} ${several === 1 ? "device" : "devices"}`)),
      make("p", { class: "quiet" }, visible(where), ` first ${moment(first)}, last ${moment(last)}`),
      make("p", { class: "row" }, ...devices.slice(0, 12).map(([name, times]) => app.link("/device", { id: name }, { class: "tag" }, `${visible(name)}${times > 1 ? ` × ${times}` : ""}`))),
      make("details", {}, make("summary", { class: "quiet" }, "Traceback"), make("pre", {}, traceback)))));
    if (!crashes.length) list.append(make("p", { class: "card empty" }, "No device has reported a crash."));
  }
  await refresh();
  return { refresh };
}
