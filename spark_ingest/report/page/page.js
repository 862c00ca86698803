// Begins everything, and keeps the one thing that all parts share: which device is selected.

const data = JSON.parse(byId("data").textContent);
const SUGGESTED = 50;

function select(device, { jump = false } = {}) {
  table.selected = device;
  const name = device === null ? "" : data.devices.id[device];
  byId("device").value = visible(name);
  byId("pick-error").textContent = "";
  byId("metrics-title").textContent = device === null ? "Metrics of the fleet" : visible(name);
  byId("clear").hidden = device === null;
  byId("metrics-note").textContent = device === null
    ? "The median and the span from p10 to p90 over all devices. Choose a device to see its own lines."
    : "Its own lines, over the median and the span from p10 to p90 of the fleet.";
  showFacts(device);
  showMetricsOf(device);
  for (const button of document.querySelectorAll("[data-device]")) {
    const chosen = Number(button.dataset.device) === device;
    const row = button.closest("tr, li, .map-row");
    if (chosen) row?.setAttribute("aria-current", "true");
    else row?.removeAttribute("aria-current");
  }
  history.replaceState(null, "", device === null ? "#" : `#device=${encodeURIComponent(name)}`);
  if (jump) {
    byId("metrics").scrollIntoView();
    byId("metrics-title").focus({ preventScroll: true });
  }
}

// Select the device that the address names; false when it names none.
function fromAddress() {
  if (!location.hash.startsWith("#device=")) return false;
  let name;
  try {
    name = decodeURIComponent(location.hash.slice(8));
  } catch {
    return false; // Not written by this page.
  }
  const device = data.devices.id.indexOf(name);
  if (device >= 0) select(device);
  return device >= 0;
}

function picker() {
  const known = new Map(data.devices.id.map((name, i) => [visible(name), i]));
  const all = [...known.keys()];
  const input = byId("device");
  // A few at a time: a list of thousands takes longer than all charts together.
  const suggest = () => {
    const words = input.value.trim().toLowerCase();
    byId("names").replaceChildren(...all.filter((name) => name.toLowerCase().includes(words)).slice(0, SUGGESTED).map((name) => {
      const option = element("option");
      option.value = name;
      return option;
    }));
  };
  const choose = (final) => {
    const wanted = input.value.trim();
    if (!wanted) select(null);
    else if (known.has(wanted)) select(known.get(wanted), { jump: final });
    else if (final) byId("pick-error").textContent = "No device has this name";
  };
  input.addEventListener("focus", suggest);
  input.addEventListener("input", () => { suggest(); choose(false); });
  byId("pick").addEventListener("submit", (event) => { event.preventDefault(); choose(true); });
}

function begin() {
  const days = Math.max(data.as_of - data.from, 1);
  byId("span").textContent = data.as_of
    ? `${duration(days * 1000)} to ${day(data.as_of)} ${new Date(data.as_of * 1000).getUTCFullYear()}, ${clock(data.as_of)} UTC`
    : "no readings yet";
  byId("made").textContent = `Made by umqtt report at ${day(data.made)} ${new Date(data.made * 1000).getUTCFullYear()}, ${clock(data.made)} UTC.`;
  byId("nothing").hidden = data.totals.devices > 0;
  for (const part of document.querySelectorAll("main > nav, main > section:not(.tiles)")) part.hidden = !data.totals.devices;
  makeTiles();
  makeAlerts();
  makeTable();
  trafficCharts();
  makeMetricCharts();
  makeReboots();
  makeGaps();
  picker();
  if (!fromAddress()) select(null);
  byId("metric-charts").hidden = !data.metrics.length;
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-device]");
    if (button) select(Number(button.dataset.device), { jump: true });
  });
  byId("clear").onclick = () => { select(null); byId("metrics-title").focus({ preventScroll: true }); };
  addEventListener("hashchange", fromAddress);
  document.body.dataset.state = "ready";
}

begin();
