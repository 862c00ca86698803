// The fleet: totals, health at a glance, and all devices as a table.
import { Table } from "./table.js";
import { ago, count, duration, make, metricFormat, metricTitle, percent, pill, setText, since, spark, toneOf, visible } from "./dom.js";

const MAIN = ["device", "health", "link", "seen", "alerts", "fw", "readings", "missing", "delay_p95"];
// Of phones: what fits, and says most.
const NARROW = ["device", "health", "seen"];
const KEY = "umqtt-columns";
const own = (key) => ({ title: metricTitle(key), right: true, write: metricFormat(key) });
const COLUMNS = {
  device: { title: "Device" },
  health: { title: "Health", write: (value) => pill(value) },
  link: { title: "Link", write: (value) => pill(value, { goodbye: "said goodbye" }[value] ?? value) },
  seen: { title: "Last seen", right: true, write: (value) => since(value) },
  alerts: { title: "Alerts", right: true, write: (value) => (value ? make("b", {}, count(value)) : "–") },
  group: { title: "Group" },
  site: { title: "Site" },
  fw: { title: "Firmware" },
  readings: { title: "Readings", right: true, write: count },
  missing: { title: "Missing", right: true, write: count },
  dropped: { title: "Dropped", right: true, write: count },
  duplicates: { title: "Duplicates", right: true, write: count },
  quarantined: { title: "Quarantined", right: true, write: count },
  gaps: { title: "Open gaps", right: true, write: count },
  boots: { title: "Boots", right: true, write: count },
  reboots: { title: "Reboots 24 h", right: true, write: count },
  delay_p50: { title: "Delay p50", right: true, write: duration },
  delay_p95: { title: "Delay p95", right: true, write: duration },
  clock: { title: "Clock set", right: true, write: percent },
  behind: { title: "Clock behind", right: true, write: (value) => `${value} h` },
  mem_free: own("mem_free"),
  rssi: own("rssi"),
  temp_c: own("temp_c"),
  supply_v: own("supply_v"),
  boot: { title: "Boot" },
  reason: { title: "Said last" },
};
const FILTERS = { health: "Health", link: "Link", group: "Group", site: "Site", fw: "Firmware" };

export async function fleetView(host, parameters, app) {
  const chosen = Object.fromEntries(Object.keys(FILTERS).map((name) => [name, list(parameters.get(name))]));
  const state = {
    search: parameters.get("search") ?? "", sort: parameters.get("sort") ?? "", down: parameters.get("order") === "down",
    columns: list(parameters.get("columns")),
  };
  if (!state.columns.length) state.columns = saved();
  let summary = await app.api("fleet");

  const save = (replace = true) => app.go("/fleet", {
    search: state.search, ...chosen, sort: state.sort, order: state.down ? "down" : "", columns: same(state.columns, saved()) ? [] : state.columns,
  }, { replace, draw: false });
  const metricsOf = () => state.columns.filter((key) => key.startsWith("m:")).map((key) => key.slice(2));

  const tiles = make("section", { class: "tiles", "aria-label": "Overview" });
  const health = make("div", { class: "facets", role: "group", "aria-label": "Filter by health" });
  const shares = make("div", { class: "shares", "aria-hidden": "true" });
  const matched = make("p", { class: "quiet", role: "status" });
  const search = make("input", { type: "search", placeholder: "Search devices, groups, sites, firmware", "aria-label": "Search devices",
    value: state.search, spellcheck: "false", autocapitalize: "off", autocomplete: "off" });
  const filters = make("div", { class: "row" });
  const card = make("section", { class: "card", "aria-label": "Devices" });

  const columns = () => state.columns.filter((key) => Object.hasOwn(COLUMNS, key) || key.startsWith("m:")).map((key) => column(key, app));
  const table = new Table({
    label: "Devices",
    columns: columns(),
    sort: state.sort, down: state.down, key: (row) => row.device,
    empty: "No device matches.",
    source: async ({ offset, limit, sort, down }) => {
      const answer = await app.api("devices", { search: state.search, filter: chosen, sort, order: down ? "down" : "up", metrics: metricsOf(), offset, limit })
        .catch((error) => { setText(matched, error.message); return null; });
      if (!answer) return null;
      setText(matched, answer.matched === summary.totals.devices ? count(answer.matched) : `${count(answer.matched)} of ${count(summary.totals.devices)}`);
      return { rows: answer.rows.map((row) => Object.fromEntries(answer.columns.map((key, at) => [key, row[at]]))), matched: answer.matched };
    },
    sorted: (sort, down) => { Object.assign(state, { sort, down }); save(); },
    drawn: (rows) => drawSparks(rows),
  });

  // Lines are fetched once for each device and metric that comes into view, and again after a new version.
  let lines = new Map();
  let timer = 0;
  function drawSparks(rows) {
    const metrics = metricsOf();
    const wanted = rows.map((row) => row.device).filter((device) => !lines.has(device));
    if (!metrics.length || !wanted.length) return;
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const some = wanted.slice(0, 100);
      const answer = await app.api("sparks", { devices: some, metrics }).catch(() => null);
      if (!answer) return;
      for (const device of some) lines.set(device, Object.fromEntries(metrics.map((metric) => [metric, answer.lines[metric]?.[device] ?? []])));
      table.draw(true);
    }, 120);
  }

  function column(key, { link }) {
    if (key.startsWith("m:")) {
      const metric = key.slice(2);
      return { key, title: metricTitle(metric), right: true, write: (value, row) => make("span", {}, spark(lines.get(row.device)?.[metric] ?? []), " ", metricFormat(metric)(value)) };
    }
    if (key === "device") return { key, ...COLUMNS.device, write: (value) => link("/device", { id: value }, { class: "open" }, visible(value)) };
    return { key, ...COLUMNS[key] };
  }

  function drawSummary() {
    const { totals, facets } = summary;
    const tile = (name, figure, note, { tone = "", to = null } = {}) => make(to ? "button" : "div", { class: `tile ${tone}`, type: to && "button", onclick: to },
      make("span", { class: "name" }, name), make("div", { class: "figure" }, figure), make("span", { class: "quiet" }, note));
    const only = (name, values) => () => {
      for (const one of Object.keys(FILTERS)) chosen[one] = [];
      chosen[name] = values;
      changed();
    };
    const by = (column) => () => { Object.assign(state, { sort: column, down: true }); Object.assign(table, state); table.mark(); changed(); };
    const offline = facets.health.find(([name]) => name === "offline")?.[1] ?? 0;
    tiles.replaceChildren(
      tile("Devices", count(totals.devices), totals.seen ? `newest message ${ago(totals.seen)}` : "none yet"),
      tile("Online", count(totals.online), totals.devices ? percent(totals.online / totals.devices) : "", { to: only("link", ["online"]) }),
      tile("Offline", count(offline), offline ? "silent too long, or lost" : "none", { tone: offline ? "bad" : "", to: only("health", ["offline"]) }),
      tile("Open alerts", count(totals.alerts), totals.alerts ? "of all devices" : "none", { tone: totals.alerts ? "warn" : "", to: by("alerts") }),
      tile("Readings", count(totals.readings), "each once"),
      tile("Missing", count(totals.missing), `${count(totals.gaps)} open gaps`, { tone: totals.missing ? "warn" : "", to: by("missing") }),
    );
    const all = Math.max(1, totals.devices);
    shares.replaceChildren(...facets.health.map(([name, n]) => {
      const part = make("span", { class: toneOf(name) });
      part.style.flex = `${n / all} 1 0`;
      return part;
    }));
    health.replaceChildren(...facets.health.map(([name, n]) => {
      const inner = pill(name);
      inner.append(make("span", { class: "n" }, count(n)));
      return make("button", { type: "button", "aria-pressed": String(chosen.health.includes(name)), onclick: () => { toggle(chosen.health, name); changed(); } }, inner);
    }));
    filters.replaceChildren(...Object.entries(FILTERS).filter(([name]) => name !== "health" && facets[name].length > 1).map(([name, title]) => {
      const options = facets[name].map(([value, n]) => make("option", { value: `=${value}` }, `${visible(value || "none")} (${count(n)})`));
      const select = make("select", { "aria-label": title, onchange: () => { chosen[name] = select.value ? [select.value.slice(1)] : []; changed(); } },
        make("option", { value: "" }, `${title}: all`), ...options);
      select.value = chosen[name].length ? `=${chosen[name][0]}` : "";
      return select;
    }), columnMenu());
  }

  function columnMenu() {
    const choices = [...Object.keys(COLUMNS), ...summary.metrics.filter((name) => !(name in COLUMNS)).map((name) => `m:${name}`),
      ...["mem_free", "rssi", "temp_c", "supply_v"].filter((name) => summary.metrics.includes(name)).map((name) => `m:${name}`)];
    const boxes = choices.filter((key) => key !== "device").map((key) => {
      const title = key.startsWith("m:") ? `${metricTitle(key.slice(2))}, with its day` : COLUMNS[key].title;
      const box = make("input", { type: "checkbox", checked: state.columns.includes(key), onchange: () => {
        toggle(state.columns, key);
        localStorage.setItem(KEY, JSON.stringify(state.columns));
        lines = new Map();
        table.setColumns(columns());
        save();
        table.reload(true);
      } });
      return make("label", {}, box, title);
    });
    return make("details", { class: "menu" }, make("summary", { class: "button" }, "Columns"), make("div", {}, boxes));
  }

  function changed() {
    save();
    drawSummary();
    table.reload();
  }

  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => { state.search = search.value.trim(); save(); table.reload(); }, 120);
  });

  card.append(make("div", { class: "head" }, make("h2", {}, "Devices"), matched), shares, health,
    make("div", { class: "bar" }, search, filters), table.node);
  host.append(make("div", { class: "top" }, make("h1", {}, "Fleet")), tiles, ...summary.totals.devices ? [card] : [nothing(app)]);
  drawSummary();

  const ticking = setInterval(() => table.draw(true), 15000);
  return {
    async refresh() {
      const before = summary.totals.devices;
      summary = await app.api("fleet");
      if (!before !== !summary.totals.devices) return app.go("/fleet", Object.fromEntries(parameters), { replace: true, draw: true });
      lines = new Map();
      if (!host.querySelector("details[open]")) drawSummary();
      return table.reload(true);
    },
    close: () => { clearInterval(ticking); clearTimeout(typing); clearTimeout(timer); },
  };
}

// What to do when there is no device yet.
function nothing({ me }) {
  const broker = me.brokers[0]?.where ?? "mqtt://127.0.0.1:1883";
  const step = (title, command) => make("li", {}, make("p", {}, title), make("pre", {}, command));
  return make("section", { class: "card" }, make("h2", {}, "No device has sent a reading yet"),
    make("p", { class: "quiet" }, "This page fills by itself as soon as the pipeline has stored the first reading."),
    make("ol", { class: "stack first" },
      step("Try everything without a board:", "umqtt demo"),
      step("Or put the firmware on a board at the cable:", "umqtt new && umqtt flash && umqtt provision"),
      step("Collect what the broker gets:", `umqtt collect --broker ${broker} --spool spool`),
      step("And store it:", `umqtt ingest --spool spool --tables ${me.tables}`)));
}

function list(text) {
  try {
    const found = JSON.parse(text ?? "[]");
    return Array.isArray(found) ? found.map(String) : [];
  } catch {
    return [];
  }
}

function saved() {
  const kept = list(localStorage.getItem(KEY));
  return kept.length ? kept : [...innerWidth < 860 ? NARROW : MAIN];
}
const same = (one, other) => one.join("\0") === other.join("\0");
function toggle(some, one) {
  if (some.includes(one)) some.splice(some.indexOf(one), 1);
  else some.push(one);
}
