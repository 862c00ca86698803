// Explore: SQL over the tables, its rows, a chart of them, and downloads.
import { Chart } from "./chart.js";
import { Table, local } from "./table.js";
import { count, make, plain, setText, stamp, visible } from "./dom.js";

const EXAMPLES = {
  "Devices by health": "SELECT health, count(*) AS devices FROM devices GROUP BY ALL ORDER BY devices DESC",
  "Readings a minute": "SELECT minute, readings, duplicates, quarantined FROM traffic ORDER BY minute DESC LIMIT 500",
  "Boots by cause": "SELECT cause, count(*) AS boots, count(DISTINCT device_id) AS devices FROM boots GROUP BY ALL ORDER BY boots DESC",
  "A metric of the fleet": "SELECT window_start, avg(mean) AS mean, min(min) AS low, max(max) AS high FROM windows\nWHERE metric = 'temp_c' GROUP BY ALL ORDER BY window_start",
  "Why messages are refused": "SELECT reason, count(*) AS n, max(received_ts) AS last FROM quarantine GROUP BY ALL ORDER BY n DESC",
  "The largest gaps": "SELECT device_id, boot, \"first\", \"last\", missing, state FROM gaps ORDER BY missing DESC LIMIT 100",
};

export async function exploreView(host, parameters, app) {
  const sql = make("textarea", { rows: 5, spellcheck: "false", "aria-label": "SQL", value: parameters.get("sql") ?? Object.values(EXAMPLES)[0] });
  const status = make("p", { class: "quiet", role: "status" });
  const result = make("div", { class: "stack" });
  const button = make("button", { class: "button primary" }, "Run");
  const downloads = ["csv", "parquet"].map((form) => make("button", { type: "button", class: "button", onclick: () => download(form) }, form === "csv" ? "CSV" : "Parquet"));
  const example = make("select", { "aria-label": "Examples", onchange: () => { if (example.value) sql.value = example.value; example.value = ""; } },
    make("option", { value: "" }, "Examples"), ...Object.entries(EXAMPLES).map(([name, text]) => make("option", { value: text }, name)));
  const form = make("form", { class: "stack", onsubmit: (event) => { event.preventDefault(); run(); } }, sql, make("div", { class: "bar" }, button, ...downloads, example, status));
  sql.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(); });
  const { tables } = await app.api("schema");
  host.append(make("div", { class: "top" }, make("h1", {}, "Explore"), make("p", { class: "quiet" }, "Reads only; Ctrl and Enter run it.")),
    make("section", { class: "card", "aria-label": "Statement" }, form), result,
    make("section", { class: "card", "aria-label": "Tables" }, make("h2", {}, "Tables"), ...tables.map(({ name, columns }) => make("details", {},
      make("summary", {}, make("code", {}, name), ` ${columns.length} columns`), make("p", { class: "code" }, columns.map((one) => `${one.name} ${one.type}`).join(", "))))));

  let chart = null;
  async function run() {
    app.go("/explore", { sql: sql.value }, { replace: true });
    button.disabled = true;
    setText(status, "running…");
    chart?.destroy();
    try {
      const { head, columns, rows } = await app.api("query", {}, { sql: sql.value, form: "json" });
      setText(status, `${count(head.rows)} rows${head.cut ? ", cut off there" : ""}, ${count(head.ms)} ms`);
      draw(columns, rows);
    } catch (error) {
      setText(status, "");
      result.replaceChildren(make("pre", { class: "banner", role: "alert" }, error.message.split("\n").map(visible).join("\n")));
    } finally {
      button.disabled = false;
    }
  }

  function draw(columns, rows) {
    const write = { time: (value) => stamp(value), number: (value) => (typeof value === "number" ? (Number.isInteger(value) ? value.toLocaleString("en") : plain(value)) : visible(value)), text: (value) => visible(value) };
    const objects = rows.map((row) => Object.fromEntries(row.map((value, at) => [`c${at}`, value])));
    const source = local(objects);
    const table = new Table({ label: "Result", source: async (asked) => source(asked), empty: "No rows.",
      columns: columns.map(({ name, type }, at) => ({ key: `c${at}`, title: visible(name), right: type === "number", write: write[type] })) });
    const time = columns.findIndex(({ type }) => type === "time");
    const numbers = columns.map(({ type }, at) => (type === "number" ? at : -1)).filter((at) => at >= 0).slice(0, 4);
    const parts = [];
    if (time >= 0 && numbers.length && rows.length > 1) {
      const ordered = rows.filter((row) => row[time] !== null).sort((one, other) => one[time] - other[time]);
      chart = new Chart({ title: "Over time", write: plain, height: 260 });
      parts.push(chart.node);
      queueMicrotask(() => chart.set(ordered.map((row) => row[time]), numbers.map((at, index) => ({ name: visible(columns[at].name), tone: "abcd"[index],
        values: ordered.map((row) => (typeof row[at] === "number" ? row[at] : null)) }))));
    }
    result.replaceChildren(...parts, make("section", { class: "card", "aria-label": "Result" }, table.node));
  }

  async function download(kind) {
    setText(status, "running…");
    try {
      const response = await app.ask("query", { sql: sql.value, form: kind });
      const url = URL.createObjectURL(await response.blob());
      make("a", { href: url, download: `query.${kind}` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60000);
      setText(status, "");
    } catch (error) {
      setText(status, error.message);
    }
  }

  if (parameters.get("sql")) run();
  return { close: () => chart?.destroy() };
}
