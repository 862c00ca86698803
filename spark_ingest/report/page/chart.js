// One chart: lines, areas, bars and a band over equal steps of time, drawn as SVG in the size that it has.

// The smallest of 1, 2, 5 times a power of ten that `parts` of them span the range.
function niceStep(range, parts) {
  const raw = range / parts;
  const power = 10 ** Math.floor(Math.log10(raw));
  return ([1, 2, 5].find((factor) => factor * power >= raw) || 10) * power;
}

const DURATIONS = [1, 10, 100, 1e3, 1e4, 6e4, 6e5, 36e5, 36e6, 864e5, 6048e5, 31536e6];

function linearScale(values, fromZero, finest) {
  let low = fromZero ? 0 : Infinity;
  let high = fromZero ? 0 : -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) [low, high] = [0, 1];
  if (low === high) [low, high] = fromZero ? [0, Math.max(1, high)] : [low - (Math.abs(low) * 0.05 || 1), low + (Math.abs(low) * 0.05 || 1)];
  const step = Math.max(finest, niceStep(high - low, 4));
  if (!Number.isFinite(step) || !step) return { ticks: [low, high], at: (value) => (value > low ? 1 : 0) };
  const bottom = Math.floor(low / step + 1e-9) * step;
  const lines = Math.max(1, Math.ceil((high - bottom) / step - 1e-9));
  const ticks = Array.from({ length: lines + 1 }, (_, i) => bottom + i * step);
  return { ticks, at: (value) => (value - bottom) / (lines * step) };
}

function durationScale(values) {
  const known = values.map((value) => Math.max(value, 1));
  const low = Math.min(...known, 1e3);
  const high = Math.max(...known, low);
  const first = Math.max(0, DURATIONS.findLastIndex((tick) => tick <= low));
  let last = DURATIONS.findIndex((tick) => tick >= high);
  last = Math.max(first + 1, last < 0 ? DURATIONS.length - 1 : last);
  const [bottom, top] = [Math.log(DURATIONS[first]), Math.log(DURATIONS[last])];
  return { ticks: DURATIONS.slice(first, last + 1), at: (value) => (Math.log(Math.max(value, DURATIONS[first])) - bottom) / (top - bottom) };
}

// Seconds at which the time axis is marked, at least `least` seconds apart.
function timeTicks({ start, step, count: steps }, least) {
  const apart = [1, 2, 5, 10, 15, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000, 7776000, 31536000];
  const every = apart.find((each) => each >= least) || apart.at(-1);
  const ticks = [];
  for (let at = Math.ceil(start / every) * every; at <= start + step * steps; at += every) ticks.push(at);
  return { ticks, label: (at) => (every < 86400 && at % 86400 ? clock(at, every) : day(at)) };
}

const numbers = (values) => values.filter((value) => value !== null);

class Chart {
  // spec: title, unit, format, series [{name, tone, values, kind: line | bar, area}], band {name, low, high},
  // scale: zero | free | duration, finest (between two marks of it), note; start, step, count as in the data.
  constructor(host, spec) {
    this.host = host;
    const head = element("div", "head");
    this.legend = element("p", "legend");
    const title = element("h3", "", spec.title);
    if (spec.unit) title.append(element("small", "quiet", ` ${spec.unit}`));
    head.append(title, this.legend);
    this.plot = element("div", "plot");
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "img");
    this.readout = element("p", "readout quiet");
    this.readout.setAttribute("aria-live", "polite");
    host.replaceChildren(head, this.plot, this.readout);
    this.cursor = null;
    this.set(spec);
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.plot.addEventListener("pointermove", (event) => this.point(Math.floor((event.offsetX - this.left) / this.wide * spec.count)));
    this.plot.addEventListener("pointerleave", () => this.point(null));
    this.plot.addEventListener("blur", () => this.point(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
  }

  set(spec) {
    this.spec = spec;
    this.legend.replaceChildren(...[...(spec.band ? [{ ...spec.band, tone: "band" }] : []), ...spec.series].map(
      ({ name, tone }) => element("span", `key ${tone}`, name)));
    this.draw();
  }

  draw() {
    const { spec, plot } = this;
    const [width, height] = [plot.clientWidth, plot.clientHeight];
    if (!width || !height) return;
    const everything = spec.series.flatMap((one) => numbers(one.values));
    if (spec.band) everything.push(...numbers(spec.band.low), ...numbers(spec.band.high));
    const stacked = spec.series[0]?.kind === "bar";
    if (stacked) everything.push(...this.sums());
    const scale = spec.scale === "duration" ? durationScale(everything) : linearScale(everything, spec.scale === "zero", spec.finest || 0);
    const labels = scale.ticks.map(spec.format);
    this.left = 14 + 6.6 * Math.max(...labels.map((label) => label.length));
    this.wide = Math.max(1, width - this.left - 8);
    this.high = height - 34;
    this.y = (value) => 10 + this.high * (1 - scale.at(value));
    this.x = (index) => this.left + this.wide * (index + 0.5) / spec.count;
    const picture = shape("svg", { width, height, "aria-hidden": "true" });
    scale.ticks.forEach((tick, i) => {
      const at = Math.round(this.y(tick)) + 0.5;
      picture.append(shape("path", { class: "grid", d: `M${this.left} ${at}h${this.wide}` }));
      this.text(picture, labels[i], this.left - 8, at + 4, "end");
    });
    this.timeAxis(picture);
    if (spec.band) picture.append(shape("path", { class: "bandfill", d: this.bandPath(spec.band) }));
    if (stacked) this.bars(picture);
    else for (const one of spec.series) this.line(picture, one);
    this.mark = shape("g", {});
    picture.append(this.mark);
    plot.replaceChildren(picture);
    if (!everything.length) plot.append(element("p", "empty", "Nothing in this time"));
    plot.setAttribute("aria-label", this.summary());
    this.point(this.cursor);
  }

  text(picture, words, x, y, anchor) {
    const made = shape("text", { x, y, "text-anchor": anchor });
    made.textContent = words;
    picture.append(made);
  }

  timeAxis(picture) {
    const { start, step, count: steps } = this.spec;
    const { ticks, label } = timeTicks(this.spec, (step * steps * 68) / this.wide);
    for (const tick of ticks) {
      const at = this.left + (this.wide * (tick - start)) / (step * steps);
      const half = 3.2 * label(tick).length;
      if (at - half < this.left - 10 || at + half > this.left + this.wide + 8) continue;
      this.text(picture, label(tick), at, 10 + this.high + 18, "middle");
    }
  }

  // Runs of values without a gap, as [[index, value], …].
  runs(values) {
    const found = [];
    values.forEach((value, i) => {
      if (value === null) return;
      if (i && values[i - 1] !== null) found.at(-1).push([i, value]);
      else found.push([[i, value]]);
    });
    return found;
  }

  line(picture, { values, tone, area }) {
    for (const run of this.runs(values)) {
      const points = run.map(([i, value]) => `${this.x(i).toFixed(1)} ${this.y(value).toFixed(1)}`);
      if (run.length === 1) picture.append(shape("circle", { class: `dot ${tone}`, cx: this.x(run[0][0]), cy: this.y(run[0][1]), r: 2.5 }));
      const path = `M${points.join("L")}`;
      if (area) picture.append(shape("path", { class: `area ${tone}`, d: `${path}V${10 + this.high}H${this.x(run[0][0])}Z` }));
      picture.append(shape("path", { class: `line ${tone}`, d: path }));
    }
  }

  bandPath({ low, high }) {
    const edge = (run, values) => run.map(([i]) => `${this.x(i).toFixed(1)} ${this.y(values[i]).toFixed(1)}`);
    return this.runs(low).map((run) => `M${edge(run, high).join("L")}L${edge(run, low).reverse().join("L")}Z`).join("");
  }

  bars(picture) {
    const width = this.wide / this.spec.count;
    const stack = new Array(this.spec.count).fill(0);
    for (const { values, tone } of this.spec.series) {
      let path = "";
      values.forEach((value, i) => {
        if (!value) return;
        const [bottom, top] = [this.y(stack[i]), this.y(stack[i] + value)];
        stack[i] += value;
        // A single one among thousands is still seen.
        const tall = Math.max(1.5, bottom - top);
        path += `M${(this.left + width * i + 0.4).toFixed(1)} ${bottom.toFixed(1)}v${(-tall).toFixed(1)}h${Math.max(1, width - 0.8).toFixed(1)}v${tall.toFixed(1)}Z`;
      });
      picture.append(shape("path", { class: `bar ${tone}`, d: path }));
    }
  }

  sums() {
    return Array.from({ length: this.spec.count }, (_, i) => this.spec.series.reduce((sum, one) => sum + (one.values[i] || 0), 0));
  }

  summary() {
    const { spec } = this;
    const parts = spec.series.map(({ name, values }) => {
      const known = numbers(values);
      if (!known.length) return `${name}: nothing`;
      return `${name}: ${spec.format(Math.min(...known))} to ${spec.format(Math.max(...known))}, last ${spec.format(known.at(-1))}`;
    });
    return `${spec.title}${spec.unit ? `, ${spec.unit}` : ""}. ${parts.join("; ")}. Arrow keys read it step by step.`;
  }

  key(event) {
    const last = this.spec.count - 1;
    const from = this.cursor ?? (event.key === "ArrowLeft" ? last + 1 : -1);
    const to = { ArrowLeft: Math.max(0, from - 1), ArrowRight: Math.min(last, from + 1), Home: 0, End: last, Escape: null }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.point(to);
  }

  point(index) {
    const { spec, mark } = this;
    const inside = index !== null && index >= 0 && index < spec.count;
    this.cursor = inside ? index : null;
    if (!mark) return;
    mark.replaceChildren();
    if (!inside) {
      this.readout.textContent = spec.note || "";
      return;
    }
    const at = spec.start + spec.step * index;
    const x = this.x(index);
    mark.append(shape("path", { class: "cursor", d: `M${x} 10v${this.high}` }));
    const said = [];
    for (const { name, values, tone, kind } of spec.series) {
      if (values[index] === null) continue;
      if (kind !== "bar") mark.append(shape("circle", { class: `dot ${tone}`, cx: x, cy: this.y(values[index]), r: 3.5 }));
      said.push(`${name} ${spec.format(values[index])}`);
    }
    if (spec.band && spec.band.low[index] !== null) said.push(`${spec.band.name} ${spec.format(spec.band.low[index])} to ${spec.format(spec.band.high[index])}`);
    this.readout.textContent = `${moment(at, spec.step)} to ${clock(at + spec.step, spec.step)}: ${said.join(", ") || "nothing"}`;
  }
}
