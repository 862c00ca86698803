// A chart: lines over time, drawn by uPlot; a readout by pointer or keyboard; zoom by dragging.
import { clock, day, make, precise, setText, zoneName } from "./dom.js";

const HEIGHT = 190;
const FONT = "12px system-ui, sans-serif";
const TONES = ["--a", "--b", "--c", "--d"];

// Steps between the lines of a scale that counts.
const WHOLE = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

const themed = new Set();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => themed.forEach((chart) => chart.rebuild()));

// title, unit, note: texts. write(value): a value as text. zoomed(from, to): the part that was dragged over, in
// milliseconds; null, null: all again. group: charts whose cursors move together. step: milliseconds that each point
// stands for; without it the newest value is read out while no point is chosen.
// set(x, series): x: times in milliseconds; series: [{ name, values, tone, low, high, band: name of low to high, dashed }].
export class Chart {
  constructor({ title, unit = "", note = "", write = String, zoomed = null, group = null, log = false, zero = false, whole = false, step = 0, height = HEIGHT }) {
    Object.assign(this, { title, unit, write, zoomed, group, log, zero, whole, step, height, rest: "" });
    this.legend = make("p", { class: "legend" });
    this.readout = make("p", { class: "quiet readout" });
    this.plot = make("div", { class: "plot", tabindex: "0", role: "img", "aria-label": title });
    this.node = make("figure", { class: "card chart" },
      make("figcaption", { class: "head" }, make("h3", {}, title, unit ? make("small", { class: "quiet" }, ` ${unit}`) : null), this.legend),
      this.plot, this.readout, note ? make("p", { class: "quiet" }, note) : null);
    new ResizeObserver(() => this.resize()).observe(this.plot);
    this.plot.addEventListener("keydown", (event) => this.onKey(event));
    this.plot.addEventListener("blur", () => this.show(null));
    themed.add(this);
  }

  destroy() {
    themed.delete(this);
    this.drawn?.destroy();
    this.drawn = null;
  }

  set(x, series, from = x[0], to = x.at(-1)) {
    Object.assign(this, { x, series, from, to });
    const keys = series.flatMap(({ name, tone, band }, at) => [...band ? [{ name: band, tone: "band" }] : [], { name, tone: tone ?? "abcd"[at % 4] }]);
    this.legend.replaceChildren(...keys.map(({ name, tone }) => make("span", { class: `key ${tone}` }, name)));
    this.legend.hidden = keys.length < 2 && !this.step;
    const said = series.map(({ name, values }) => {
      const known = values.filter((value) => value !== null);
      return known.length ? `${name}: ${this.write(Math.min(...known))} to ${this.write(Math.max(...known))}` : `${name}: nothing`;
    });
    this.plot.setAttribute("aria-label", `${this.title}${this.unit ? `, ${this.unit}` : ""}. ${said.join("; ")}. Arrow keys read it step by step.`);
    this.rebuild();
  }

  rebuild() {
    if (!this.x || !this.plot.clientWidth) return;
    this.drawn?.destroy();
    const known = this.series.some(({ values }) => values.some((value) => value !== null));
    if (!known) {
      this.drawn = null;
      this.plot.replaceChildren(make("p", { class: "empty" }, "Nothing in this time"));
      return;
    }
    this.plot.replaceChildren();
    const style = getComputedStyle(this.plot);
    const colour = (name) => style.getPropertyValue(name).trim();
    const [columns, lines, bands] = [[this.x.map((ms) => ms / 1000)], [{}], []];
    this.series.forEach(({ values, low, high, tone, dashed, name }, at) => {
      const stroke = colour(tone ? `--${tone}` : TONES[at % TONES.length]);
      if (low && high) {
        bands.push({ series: [lines.length, lines.length + 1], fill: `${stroke}2b` });
        columns.push(high, low);
        lines.push({ stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } });
      }
      columns.push(values);
      lines.push({ label: name, stroke, width: 1.7, dash: dashed ? [5, 4] : undefined, points: { size: 4, fill: stroke } });
    });
    const axis = { stroke: colour("--quiet"), font: FONT, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const options = {
      width: this.plot.clientWidth,
      height: this.height,
      series: lines,
      bands,
      legend: { show: false },
      tzDate: (at) => (zoneName() ? uPlot.tzDate(new Date(at * 1000), zoneName()) : new Date(at * 1000)),
      padding: [8, 8, 0, 0],
      cursor: {
        drag: { x: Boolean(this.zoomed), y: false, setScale: false },
        points: { size: 7 },
        sync: this.group ? { key: this.group } : undefined,
        y: false,
      },
      scales: {
        x: { time: true, range: () => [this.from / 1000, this.to / 1000] },
        y: { distr: this.log ? 3 : 1, range: this.log ? undefined : (plot, low, high) => this.range(low, high) },
      },
      axes: [{ ...axis, size: 30, space: 70, values: (plot, ticks, at, space, step) => ticks.map((tick) => tickText(tick * 1000, step)) },
        { ...axis, size: 62, incrs: this.whole ? WHOLE : undefined, values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : this.write(tick))) }],
      hooks: {
        setCursor: [(plot) => this.read(plot.cursor.idx)],
        setSelect: [(plot) => this.select(plot)],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => this.zoomed?.(null, null))],
      },
    };
    this.drawn = new uPlot(options, columns, this.plot);
    this.read(null);
  }

  range(low, high) {
    if (low === null) return [0, 1];
    const bottom = this.zero ? 0 : low;
    const room = (high - bottom) * 0.08 || Math.abs(high) * 0.05 || 1;
    return [this.zero ? 0 : bottom - room, high + room];
  }

  select(plot) {
    if (plot.select.width < 8) return;
    const [from, to] = [plot.select.left, plot.select.left + plot.select.width].map((px) => Math.round(plot.posToVal(px, "x") * 1000));
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.zoomed?.(from, to);
  }

  read(index) {
    this.index = index;
    const shown = index ?? (this.step ? null : this.last());
    if (shown === null || shown === undefined) {
      setText(this.readout, this.rest);
      return;
    }
    const parts = [];
    for (const { name, values, low, high, band } of this.series) {
      const named = this.step || this.series.length > 1 ? `${name} ` : "";
      if (values[shown] !== null) parts.push(`${named}${this.write(values[shown])}`);
      if (band && low[shown] !== null) parts.push(`${band} ${this.write(low[shown])} to ${this.write(high[shown])}`);
    }
    const at = this.x[shown] - this.step / 2;
    const fine = this.step ? this.step < 60000 : this.to - this.from < 72e5;
    const end = this.step ? ` to ${(fine ? precise : clock)(at + this.step)}` : "";
    setText(this.readout, `${day(at)} ${(fine ? precise : clock)(at)}${end}: ${parts.join(", ") || (this.step ? "nothing" : "no value")}`);
  }

  last() {
    for (let at = this.x.length - 1; at >= 0; at -= 1) {
      if (this.series.some(({ values }) => values[at] !== null)) return at;
    }
    return null;
  }

  show(index) {
    if (!this.drawn) return;
    if (index === null) this.drawn.setCursor({ left: -10, top: -10 });
    else this.drawn.setCursor({ left: this.drawn.valToPos(this.x[index] / 1000, "x"), top: 10 });
  }

  onKey(event) {
    if (!this.drawn) return;
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (event.key === "Escape") this.show(null);
    else if (step) {
      event.preventDefault();
      const from = this.index ?? (this.step ? (step < 0 ? this.x.length : -1) : this.last() ?? 0);
      this.show(Math.max(0, Math.min(this.x.length - 1, from + step)));
    }
  }

  resize() {
    if (!this.drawn) this.rebuild();
    else if (this.plot.clientWidth !== this.drawn.width) this.drawn.setSize({ width: this.plot.clientWidth, height: this.height });
  }
}

function tickText(ms, step) {
  if (step >= 86400 || clock(ms) === "00:00") return day(ms);
  return (step < 60 ? precise : clock)(ms);
}
