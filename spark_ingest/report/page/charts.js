// Which charts there are, and what a selected device adds to them.

const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";

// A device's line as metrics.py wrote it: two digits a step between its lowest and highest value, dots for none.
function decoded([low, high, text]) {
  const values = [];
  for (let i = 0; i < text.length; i += 2) {
    const level = DIGITS.indexOf(text[i]) * 64 + DIGITS.indexOf(text[i + 1]);
    const share = level / 4095;
    values.push(text[i] === "." ? null : low * (1 - share) + high * share);
  }
  return values;
}

function trafficCharts() {
  const { traffic, gaps } = data;
  const each = duration(traffic.step * 1000);
  new Chart(byId("rate"), {
    ...traffic, title: "Message rate", unit: `readings a ${traffic.per}`, format: plain, scale: "zero",
    series: [
      ...(traffic.taken ? [{ name: "taken on the devices", tone: "b", values: traffic.taken }] : []),
      { name: traffic.taken ? "received" : "readings", tone: "a", values: traffic.readings, area: true },
    ],
    note: `Means of ${each}.`,
  });
  byId("waiting").hidden = !traffic.waiting;
  if (traffic.waiting) {
    new Chart(byId("waiting"), {
      ...traffic, title: "Waiting on the devices", unit: "readings", format: count, scale: "zero", finest: 1,
      series: [{ name: "taken and not yet received", tone: "warn", values: traffic.waiting, area: true }],
      note: `At the end of each ${each}. It rises while a network is away, and falls when it is back.`,
    });
  }
  new Chart(byId("delay"), {
    ...traffic, title: "Delay", unit: "from the reading to the collector", format: duration, scale: "duration",
    series: [{ name: "p95", tone: "b", values: traffic.p95 }, { name: "p50", tone: "a", values: traffic.p50 }],
    note: `Percentiles of ${traffic.waiting ? each : "each minute, weighted by its readings"}. The scale is logarithmic.`,
  });
  new Chart(byId("repeats"), {
    ...traffic, title: "Duplicates and quarantine", unit: `a ${traffic.per}`, format: plain, scale: "zero",
    note: "None of these is in the tables twice: they came twice, or could not be read.",
    series: [
      { name: "duplicates dropped", tone: "b", values: traffic.duplicates, kind: "bar" },
      { name: "quarantined", tone: "bad", values: traffic.quarantined, kind: "bar" },
    ],
  });
  new Chart(byId("losses"), {
    ...gaps, title: "Readings in gaps", unit: "by when the gap was noticed", format: count, scale: "zero", finest: 1,
    note: `Sums of ${duration(gaps.step * 1000)}; only gaps that are still there.`,
    series: [
      { name: "missing", tone: "warn", values: gaps.missing, kind: "bar" },
      { name: "dropped on the device", tone: "quiet", values: gaps.dropped, kind: "bar" },
    ],
  });
}

const metricCharts = [];

function metricSpec(metric, device) {
  const fleet = { name: "median", tone: device === null ? "a" : "quiet", values: metric.mid };
  const own = device === null ? undefined : metric.lines[device];
  const name = device === null ? "" : visible(data.devices.id[device]);
  const series = own ? [fleet, { name, tone: "b", values: decoded(own) }] : [fleet];
  const kept = Object.keys(metric.lines).length;
  const missing = kept < metric.devices && device !== null && device >= kept
    ? `Lines are kept for ${count(kept)} of ${count(metric.devices)} devices; ${name} is not among them.`
    : `${name} sent no ${titleOf(metric.name).toLowerCase()} in this time.`;
  return {
    ...metric, title: titleOf(metric.name), unit: UNITS.has(metric.name) ? "" : "metric", format: formatOf(metric.name), finest: finestOf(metric.name), scale: "free", series,
    band: { name: "p10 to p90", low: metric.low, high: metric.high },
    note: device !== null && !own ? missing : several(metric.devices, "device"),
  };
}

function makeMetricCharts() {
  const host = byId("metric-charts");
  for (const metric of data.metrics) {
    const figure = element("figure", "card");
    figure.dataset.metric = metric.name;
    host.append(figure);
    metricCharts.push([metric, new Chart(figure, metricSpec(metric, null))]);
  }
}

function showMetricsOf(device) {
  for (const [metric, chart] of metricCharts) chart.set(metricSpec(metric, device));
}
