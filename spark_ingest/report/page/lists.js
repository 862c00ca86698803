// Tiles, alerts, the map of reboots, and the largest gaps.

function tile(title, figure, note, tone) {
  const made = element("div", `tile ${tone || ""}`);
  made.append(element("h2", "", title), element("p", "figure", figure), element("p", "quiet", note));
  return made;
}

// What devices that are not online said last. One that left on purpose is not one that fell silent.
function statuses({ devices, online, goodbye, lost }) {
  const parts = [[goodbye, "said goodbye"], [lost, "lost"], [devices - online - goodbye - lost, "without a status"]];
  return parts.filter(([n]) => n).map(([n, words]) => `${count(n)} ${words}`).join(", ") || (devices ? "all of them" : "none yet");
}

function makeTiles() {
  const { totals, devices } = data;
  const offline = (devices.health || []).filter((word) => word === "offline").length;
  const share = totals.readings ? totals.duplicates / (totals.readings + totals.duplicates) : 0;
  byId("tiles").append(
    tile("Devices", count(totals.devices), offline ? `${count(offline)} offline` : totals.devices ? "none offline" : "none yet"),
    tile("Online", totals.online + totals.goodbye + totals.lost ? count(totals.online) : "–", statuses(totals)),
    tile("Readings", long(totals.readings), "each stored once"),
    tile("Missing", long(totals.missing), totals.dropped ? `and ${count(totals.dropped)} dropped on devices` : "nothing dropped on devices", totals.missing ? "warn" : ""),
    tile("Duplicates", long(totals.duplicates), `dropped, ${percentOf(share)} of what came`),
    tile("Open gaps", count(totals.gaps), totals.gaps ? "late readings may fill them" : "every seq arrived", totals.gaps ? "warn" : ""),
    tile("Open alerts", count(totals.alerts), totals.alerts ? "see below" : "all quiet", totals.alerts ? "bad" : ""),
  );
}

const percentOf = (share) => (share && share < 0.001 ? "under 0.1 %" : `${tenths.format(share * 100)} %`);

// Kind of alert: what it is called, and which health it looks like.
const ALERTS = new Map(Object.entries({
  offline: ["offline", "offline"], gap: ["gap", "gaps"], reboot_loop: ["reboot loop", "rebooting"], memory_falling: ["memory falling", "memory"],
  quarantined: ["quarantined", "quarantined"],
}));

function alertRow([device, kind, text, since, until, rule]) {
  const row = element("li", until === null ? "" : "over");
  const [usual, tone] = ALERTS.get(kind) ?? [visible(kind ?? ""), "late"];
  // A default is called like its kind.
  const called = rule === null || rule === kind ? usual : visible(rule);
  const when = until === null ? `for ${duration((data.now - since) * 1000)}` : `until ${moment(until)}`;
  const time = element("span", "when quiet", since === null ? "" : `since ${moment(since)}, ${when}`);
  row.append(
    element("span", `pill ${until === null ? tone : ""}`, called),
    deviceButton(device), element("span", "text", visible(text ?? "")), time);
  return row;
}

function makeAlerts() {
  const { rows, total } = data.alerts;
  const open = data.totals.alerts;
  byId("alerts-note").textContent = total ? `${count(open)} open, ${count(total - open)} over${total > rows.length ? `; the newest ${rows.length} are listed` : ""}` : "";
  if (!total) byId("alerts-rows").append(element("li", "empty", "No alerts."));
  else listed(rows, alertRow, byId("alerts-rows"), byId("alerts-more"), 6, "alerts");
}

function rebootCells(cells, described) {
  const { start, step, count: steps } = data.reboots;
  const strip = shape("svg", { class: "strip", role: "img", "aria-label": described });
  for (const [at, times, cause] of cells) {
    const cell = shape("rect", {
      class: times > 3 ? "c3" : times > 1 ? "c2" : "c1", x: `${(at * 100) / steps}%`, width: `${100 / steps}%`, height: "100%", rx: 2,
    });
    const title = shape("title", {});
    title.textContent = `${moment(start + at * step, step)} to ${clock(start + (at + 1) * step, step)}: ${several(times, "reboot")}${cause ? ` (${visible(cause)})` : ""}`;
    cell.append(title);
    strip.append(cell);
  }
  return strip;
}

function rebootRow([device, total, cells]) {
  const row = element("div", "map-row");
  const { start, step } = data.reboots;
  const [at, most] = cells.reduce((best, cell) => (cell[1] > best[1] ? cell : best));
  const causes = [...new Set(cells.map((cell) => cell[2]).filter(Boolean))].map(visible).join(", ");
  const described = `${visible(data.devices.id[device])}: ${several(total, "reboot")}, most (${most}) at ${moment(start + at * step, step)}${causes ? `; ${causes}` : ""}`;
  row.append(deviceButton(device), rebootCells(cells, described), element("span", "n", count(total)));
  return row;
}

function makeReboots() {
  const { rows, start, step, count: steps } = data.reboots;
  const total = rows.reduce((sum, row) => sum + row[1], 0);
  byId("reboots-note").textContent = rows.length
    ? `${several(total, "reboot")} of ${several(rows.length, "device")}, most first. A square is ${duration(step * 1000)}.`
    : "No device has restarted in this time.";
  if (!rows.length) return;
  const map = byId("reboots-map");
  const body = element("div", "map-body");
  const axis = element("div", "map-axis");
  const strip = shape("svg", { "aria-hidden": "true" });
  axis.append(element("span"), strip, element("span"));
  map.append(axis, body);
  new ResizeObserver(() => {
    const { ticks, label } = timeTicks(data.reboots, (step * steps * 68) / Math.max(1, strip.clientWidth));
    strip.replaceChildren(...ticks.map((tick) => {
      const share = (tick - start) / (step * steps);
      const text = shape("text", { x: `${share * 100}%`, y: 12, "text-anchor": share < 0.05 ? "start" : share > 0.95 ? "end" : "middle" });
      text.textContent = label(tick);
      return text;
    }));
  }).observe(strip);
  listed(rows, rebootRow, body, byId("reboots-more"), 20, "devices");
}

const GAP_STATES = new Map(Object.entries({
  missing: "may still come", dropped: "dropped on the device", quarantined: "came, and could not be read", earlier: "before the collector",
}));

// A table without the column has no state.
function gapState(announced, open, state) {
  return GAP_STATES.get(state ?? (announced ? "dropped" : open ? "missing" : "")) ?? "closed";
}

function gapRow([device, boot, first, last, missing, announced, open, state, since]) {
  const row = element("tr");
  const name = element("th");
  name.scope = "row";
  name.append(deviceButton(device));
  const cells = [
    ["n", "Missing", count(missing)],
    ["", "seq", first === last ? whole.format(first) : `${whole.format(first)} – ${whole.format(last)}`],
    ["boot", "Boot", visible(boot)],
    ["", "State", gapState(announced, open, state)],
    ["n", "Since", since === null ? "–" : moment(since)],
  ].map(([className, label, text]) => {
    const cell = element("td", className, text);
    cell.dataset.label = label;
    return cell;
  });
  row.append(name, ...cells);
  return row;
}

function makeGaps() {
  const { rows, total } = data.gaps;
  byId("gaps-table").hidden = !rows.length;
  byId("gaps-note").textContent = total ? `${several(total, "range")} of seq${total > rows.length ? `; the largest ${rows.length} are listed` : ""}` : "Every seq has arrived.";
  listed(rows, gapRow, byId("gaps-rows"), byId("gaps-more"), 8, "gaps");
}
