// The table of devices: searched, filtered, sorted, and shown in pieces.

const ago = (seconds) => (data.now - seconds < 60 ? "just now" : `${duration((data.now - seconds) * 1000)} ago`);
const percent = (share) => `${share === 1 ? 100 : Math.min(99.9, Math.floor(share * 1000) / 10)} %`;

// key in data.devices, heading, how it is written, whether the largest comes first when it is sorted
const COLUMNS = [
  { key: "id", title: "Device" },
  { key: "health", title: "Health" },
  { key: "group", title: "Group" },
  { key: "seen", title: "Last seen", write: ago, number: true, down: true },
  { key: "readings", title: "Readings", write: count, number: true, down: true },
  { key: "missing", title: "Missing", write: count, number: true, down: true },
  { key: "duplicates", title: "Duplicates", write: count, number: true, down: true },
  { key: "quarantined", title: "Quarantined", write: count, number: true, down: true },
  { key: "reboots", title: "Reboots 24 h", write: count, number: true, down: true },
  { key: "behind", title: "Clock", write: (hours) => `${hours} h behind`, number: true, down: true },
  { key: "p95", title: "Delay p95", write: duration, number: true, down: true },
  { key: "clock", title: "Clock right", write: percent, number: true },
  { key: "supply_v", title: "Battery", write: formatOf("supply_v"), number: true },
  { key: "temp_c", title: "Temp.", write: formatOf("temp_c"), number: true, down: true },
  { key: "mem_free", title: "Memory", write: formatOf("mem_free"), number: true },
  { key: "rssi", title: "rssi", write: formatOf("rssi"), number: true },
  { key: "fw", title: "Firmware" },
];
// As spark_ingest/tables/schemas.py has it: worst first.
const HEALTH = ["offline", "rebooting", "quarantined", "memory", "gaps", "late", "ok"];
const FIRST_ROWS = 15;
// Null where a device does not number its readings: nobody can say, which a dash does not tell from none.
const NUMBERED = ["missing", "dropped", "duplicates"];
const unknown = (key) => NUMBERED.includes(key) ? "not known" : "–";

// `group`: null for all; "" for devices without one, since a group's name is never empty.
const table = { sort: "health", down: false, health: "all", group: null, words: "", selected: null };
const healthOf = (device) => data.devices.health?.[device] ?? "unknown";

function columnsShown() {
  return COLUMNS.filter(({ key }) => data.devices[key]);
}

// Devices in the order of the table; null and equal values keep the order of the data: worst health first, then name.
function matching() {
  const { devices } = data;
  const words = table.words.toLowerCase();
  const found = devices.id.map((_, i) => i).filter((i) =>
    (table.health === "all" || healthOf(i) === table.health)
    && (table.group === null || (devices.group[i] ?? "") === table.group)
    && (!words || [devices.id[i], devices.fw?.[i]].some((text) => visible(text ?? "").toLowerCase().includes(words))));
  const values = devices[table.sort];
  const sign = table.down ? -1 : 1;
  if (table.sort === "health") return table.down ? found.reverse() : found;
  return found.sort((one, other) => {
    const [a, b] = [values[one], values[other]];
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "number" ? a - b : a < b ? -1 : a > b ? 1 : 0);
  });
}

function healthPill(word) {
  return element("span", `pill ${HEALTH.includes(word) ? word : "late"}`, visible(word));
}

function deviceRow(device) {
  const row = element("tr");
  if (device === table.selected) row.setAttribute("aria-current", "true");
  for (const { key, title, write, number: right } of columnsShown()) {
    const cell = element(key === "id" ? "th" : "td", right ? "n" : key);
    cell.dataset.label = title;
    const value = data.devices[key][device];
    if (key === "id") {
      cell.scope = "row";
      cell.append(deviceButton(device));
      // Offline by its status, although its readings are not old enough to call it that.
      const said = { goodbye: "said goodbye", lost: "disconnected" }[data.devices.link[device]];
      if (said && healthOf(device) !== "offline") cell.append(element("span", "tag", said));
    } else if (key === "health") cell.append(healthPill(healthOf(device)));
    else cell.textContent = value === null ? unknown(key) : write ? write(value) : visible(value);
    if (key === "seen" && value !== null) cell.title = moment(value);
    // A name may be too long for its column.
    if (key === "group" && value !== null) cell.title = visible(value);
    if (!value && key !== "id" && key !== "health") cell.classList.add("zero");
    row.append(cell);
  }
  return row;
}

function drawTable() {
  const found = matching();
  const all = data.devices.id.length;
  byId("matched").textContent = found.length === all ? `${count(all)} in all` : `${count(found.length)} of ${count(all)}`;
  byId("none").hidden = !all || found.length > 0;
  byId("table").hidden = !found.length;
  for (const head of byId("heads").children) {
    const sorted = head.dataset.key === table.sort;
    if (sorted) head.setAttribute("aria-sort", table.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  byId("sort").value = table.sort;
  listed(found, deviceRow, byId("rows"), byId("more"), FIRST_ROWS, "devices");
}

function sortBy(key) {
  const column = COLUMNS.find((one) => one.key === key);
  table.down = table.sort === key ? !table.down : Boolean(column.down);
  table.sort = key;
  drawTable();
}

function tableHeads() {
  for (const { key, title, number: right } of columnsShown()) {
    const head = element("th", right ? "n" : "");
    head.scope = "col";
    head.dataset.key = key;
    const button = element("button", "head-button", title);
    button.type = "button";
    button.onclick = () => sortBy(key);
    head.append(button);
    byId("heads").append(head);
    const option = element("option", "", title.toLowerCase());
    option.value = key;
    byId("sort").append(option);
  }
}

function healthFilter() {
  const counts = new Map();
  data.devices.id.forEach((_, i) => counts.set(healthOf(i), (counts.get(healthOf(i)) || 0) + 1));
  const words = [...HEALTH, ...[...counts.keys()].filter((word) => !HEALTH.includes(word)).sort()];
  for (const word of ["all", ...words.filter((each) => counts.has(each))]) {
    const label = element("label");
    const radio = element("input");
    Object.assign(radio, { type: "radio", name: "health", value: word, checked: word === "all" });
    label.append(radio, element("span", "", word === "all" ? "All" : `${visible(word)} ${count(counts.get(word))}`));
    byId("states").append(label);
    if (word !== "all") {
      const part = element("span", `part ${HEALTH.includes(word) ? word : "late"}`);
      part.style.flexGrow = counts.get(word);
      byId("shares").append(part);
    }
  }
}

// Options are found again by their place: a device's group may have any text for a name.
function groupFilter() {
  if (!data.devices.group) return;
  const counts = new Map();
  for (const group of data.devices.group) counts.set(group ?? "", (counts.get(group ?? "") || 0) + 1);
  const groups = [null, ...[...counts.keys()].sort()];
  const select = byId("group");
  for (const group of groups) {
    const name = group === null ? "All" : group === "" ? "(none)" : visible(group);
    select.append(element("option", "", group === null ? name : `${name} ${count(counts.get(group))}`));
  }
  select.onchange = () => { table.group = groups[select.selectedIndex]; drawTable(); };
  select.parentElement.hidden = false;
}

function makeTable() {
  tableHeads();
  healthFilter();
  groupFilter();
  byId("filters").onsubmit = (event) => event.preventDefault();
  byId("search").oninput = (event) => { table.words = event.target.value.trim(); drawTable(); };
  byId("states").onchange = (event) => { table.health = event.target.value; drawTable(); };
  byId("sort").onchange = (event) => { table.sort = ""; sortBy(event.target.value); };
  drawTable();
}

// What is known of one device, beside its lines.
function showFacts(device) {
  const facts = byId("facts");
  facts.hidden = device === null;
  if (device === null) return;
  const { devices } = data;
  const value = (key, write) => (devices[key]?.[device] ?? null) === null ? unknown(key) : write(devices[key][device]);
  const rows = [
    ["Health", healthPill(healthOf(device))],
    ["Last seen", value("seen", (seconds) => `${ago(seconds)}, ${moment(seconds)}`)],
    ["Readings", value("readings", (n) => whole.format(n))],
    ["Missing, dropped", `${value("missing", count)}, ${value("dropped", count)}`],
    ["Duplicates", value("duplicates", count)],
    ["Quarantined", value("quarantined", count)],
    ["Boots", value("boots", count)],
    ["Delay p50, p95", `${value("p50", duration)}, ${value("p95", duration)}`],
    ["Clock was right", value("clock", percent)],
    ["Firmware", value("fw", visible)],
  ];
  facts.replaceChildren(...rows.map(([name, content]) => {
    const pair = element("div");
    const text = element("dd");
    text.append(content);
    pair.append(element("dt", "", name), text);
    return pair;
  }));
}
