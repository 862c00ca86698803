// The data path: where readings are, how fast they come, where they wait, and what is refused.
import { Chart } from "./chart.js";
import { Table, local } from "./table.js";
import { ago, bytes, count, duration, make, pill, plain, rate, setText, since, visible } from "./dom.js";
import { payloadOf } from "./device.js";

const KINDS = { broker: "Broker", spool: "Spool", table: "Table" };
const FIGURES = {
  clients: ["clients", count], in_per_min: ["messages in a minute", rate], out_per_min: ["messages out a minute", rate], queued: ["messages kept", count],
  dropped: ["dropped", count], bytes: ["in files", bytes], segments: ["segments", count], behind_bytes: ["not in the tables yet", bytes],
  written_at: ["last written", (ms) => ago(ms)], rows: ["rows", count], committed_at: ["last stored", (ms) => ago(ms)], version: ["version", count],
};

export async function pathView(host, parameters, app) {
  const [found, refused, alerts] = await Promise.all([app.api("path"), app.api("refused"), app.api("alerts")]);
  const flow = make("ol", { class: "flow" });
  const charts = make("section", { class: "pair", "aria-label": "Traffic" });
  const lists = make("div", { class: "stack" });
  const verdict = make("p", { class: "quiet", role: "status" });
  host.append(make("div", { class: "top" }, make("h1", {}, "Data path"), verdict), flow, charts, lists);

  const drawn = [
    new Chart({ title: "Readings", note: "Each minute, by when the collector received them: an outage is a hole, and its drain a peak.", write: rate, zero: true, group: "path" }),
    new Chart({ title: "Delay", note: "From the reading to the collector; the scale is logarithmic.", write: duration, log: true, group: "path" }),
    new Chart({ title: "Came twice, or could not be read", note: "Each minute. None of these is in silver twice.", write: plain, zero: true, group: "path" }),
    new Chart({ title: "Devices heard", note: "Each minute.", write: count, whole: true, zero: true, group: "path" }),
  ];
  charts.append(...drawn.map((chart) => chart.node));

  function drawFlow({ stages }) {
    const broken = stages.find(({ state }) => state === "offline" || state === "late");
    setText(verdict, broken ? `It backs up at ${broken.name}: ${broken.text || broken.state}` : stages.some(({ state }) => state === "unknown") ? "What can be seen from here is well." : "All parts are well.");
    flow.replaceChildren(...stages.map(({ kind, name, state, text, figures }) => make("li", { class: "card" },
      make("div", { class: "head" }, make("h2", {}, `${KINDS[kind]} ${visible(name.replace(/^mqtts?:\/\//, ""))}`.trim()), pill(state, { unknown: "not seen", offline: "away", late: "behind" }[state] ?? state)),
      make("dl", {}, ...Object.entries(figures).filter(([, value]) => value !== null).map(([key, value]) =>
        make("div", {}, make("dt", {}, FIGURES[key][0]), make("dd", {}, FIGURES[key][1](value))))),
      text ? make("p", { class: "quiet" }, visible(text)) : null)));
  }

  function drawCharts({ traffic }) {
    // A minute without traffic has no row: it is 0 for rates, and unknown for delays.
    const minutes = new Map(traffic.at.map((at, index) => [at, index]));
    const [first, last] = [traffic.at[0], traffic.at.at(-1)];
    const x = [];
    for (let at = first; at <= last; at += 60000) x.push(at);
    const column = (name, none) => x.map((at) => (minutes.has(at) ? traffic[name][minutes.get(at)] : none));
    const all = [
      [{ name: "readings", values: column("readings", 0) }],
      [{ name: "p95", values: column("p95", null), tone: "b" }, { name: "p50", values: column("p50", null), tone: "a" }],
      [{ name: "came twice", values: column("duplicates", 0), tone: "d" }, { name: "quarantined", values: column("quarantined", 0), tone: "bad" }],
      [{ name: "devices", values: column("devices", 0), tone: "d" }],
    ];
    drawn.forEach((chart, at) => chart.set(x, all[at], first, last));
    charts.hidden = !x.length;
  }

  const section = (title, note, ...content) => make("section", { class: "card", "aria-label": title },
    make("div", { class: "head" }, make("h2", {}, title), make("p", { class: "quiet" }, note)), ...content);
  const device = (value) => (value ? app.link("/device", { id: value }, { class: "open" }, visible(value)) : "no device");
  function drawLists({ alerts: all }, { reasons, samples }) {
    const open = all.filter((one) => !one.until).length;
    lists.replaceChildren(
      section("Alerts", `${count(open)} open, ${count(all.length - open)} over`, new Table({ label: "Alerts", first: 10, empty: "No alerts.", source: local(all.map((one) => ({ ...one, state: one.until ? "over" : "open", over: Boolean(one.until) }))), columns: [
        { key: "state", title: "State", write: (value, { until }) => pill(value === "open" ? "likely" : "absent", until ? `over ${ago(until)}` : "open") },
        { key: "device", title: "Device", write: device }, { key: "rule", title: "Rule" }, { key: "text", title: "What" },
        { key: "since", title: "Since", write: (value) => since(value) },
      ] }).node),
      section("Quarantine by reason", "messages that could not be read; the rest of the path goes on", new Table({ label: "Quarantine by reason", first: 10, empty: "Every message could be read.", source: local(reasons), columns: [
        { key: "n", title: "Messages", right: true, write: count }, { key: "devices", title: "Devices", right: true, write: count },
        { key: "reason", title: "Why" }, { key: "topic", title: "Newest topic" }, { key: "last", title: "Last", write: (value) => since(value) },
      ] }).node),
      ...samples.length ? [section("The newest of them", "with the message itself", new Table({ label: "Quarantined messages", first: 10, source: local(samples), columns: [
        { key: "at", title: "Received", write: (value) => since(value) }, { key: "device", title: "Device", write: device }, { key: "reason", title: "Why" },
        { key: "topic", title: "Topic" }, { key: "size", title: "Size", right: true, write: bytes }, { key: "payload", title: "Message", write: (value) => payloadOf(value) },
      ] }).node)] : [],
    );
  }

  drawFlow(found);
  drawCharts(found);
  drawLists(alerts, refused);
  let before = JSON.stringify([alerts, refused]);
  async function refresh(versions) {
    const now = await app.api("path");
    drawFlow(now);
    drawCharts(now);
    if (!versions) return;
    const both = await Promise.all([app.api("alerts"), app.api("refused")]);
    const text = JSON.stringify(both);
    if (text !== before) drawLists(...both);
    before = text;
  }
  const timer = setInterval(() => { if (!document.hidden) refresh(null).catch(() => {}); }, 5000);
  return { refresh, brokers: () => refresh(null).catch(() => {}), close: () => { clearInterval(timer); for (const chart of drawn) chart.destroy(); } };
}
