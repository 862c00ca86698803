// Messages a second in and out, drawn on a canvas: newest at the right edge, one sample a second.
import { rate, setText } from "./dom.js";

const SAMPLES = 300;
const MARGIN = { left: 52, right: 10, top: 12, bottom: 24 };

// The smallest of 1, 2, 5 times a power of ten that four lines reach the top with.
function niceStep(top) {
  const raw = Math.max(top, 1) / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
}

export class Chart {
  constructor(canvas, value) {
    this.canvas = canvas;
    this.value = value;
    this.series = { in: [], out: [] };
    this.pointer = null;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    canvas.addEventListener("pointermove", (event) => { this.pointer = event.offsetX; this.draw(); });
    canvas.addEventListener("pointerleave", () => { this.pointer = null; this.draw(); });
  }

  set(received, sent) {
    this.series = { in: received.slice(-SAMPLES), out: sent.slice(-SAMPLES) };
    this.draw();
  }

  add(received, sent) {
    this.set([...this.series.in, received], [...this.series.out, sent]);
  }

  draw() {
    const { canvas } = this;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    if (!width || !height) return;
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const paper = canvas.getContext("2d");
    paper.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name).trim();
    const area = {
      left: MARGIN.left,
      top: MARGIN.top,
      width: width - MARGIN.left - MARGIN.right,
      height: height - MARGIN.top - MARGIN.bottom,
    };
    const step = niceStep(Math.max(...this.series.in, ...this.series.out, 1));
    const lines = Math.max(1, Math.ceil(Math.max(...this.series.in, ...this.series.out, 1) / step));
    const top = step * lines;
    const y = (number) => area.top + area.height * (1 - number / top);
    this.x = (index, length) => area.left + area.width * (1 - (length - 1 - index) / (SAMPLES - 1));

    paper.font = `12px ${style.fontFamily}`;
    paper.fillStyle = colour("--quiet");
    paper.strokeStyle = colour("--line");
    paper.lineWidth = 1;
    paper.textBaseline = "middle";
    paper.textAlign = "right";
    for (let line = 0; line <= lines; line += 1) {
      const at = Math.round(y(line * step)) + 0.5;
      paper.beginPath();
      paper.moveTo(area.left, at);
      paper.lineTo(area.left + area.width, at);
      paper.stroke();
      paper.fillText(rate(line * step), area.left - 9, at);
    }
    paper.textBaseline = "top";
    // Five labels and "now" where they fit, else every other.
    const narrow = area.width < 420;
    for (let minutes = narrow ? 4 : 5; minutes >= 0; minutes -= narrow ? 2 : 1) {
      const at = area.left + area.width * (1 - minutes / 5);
      paper.textAlign = minutes === 0 ? "right" : minutes === 5 ? "left" : "center";
      paper.fillText(minutes ? `−${minutes} min` : "now", at, area.top + area.height + 8);
    }
    this.line(paper, this.series.out, y, colour("--out"), area);
    this.line(paper, this.series.in, y, colour("--in"), area);
    this.crosshair(paper, y, colour, area);
  }

  line(paper, numbers, y, colour, area) {
    if (numbers.length < 2) return;
    const path = new Path2D();
    numbers.forEach((number, index) => path.lineTo(this.x(index, numbers.length), y(number)));
    const fill = new Path2D(path);
    fill.lineTo(this.x(numbers.length - 1, numbers.length), area.top + area.height);
    fill.lineTo(this.x(0, numbers.length), area.top + area.height);
    paper.globalAlpha = 0.12;
    paper.fillStyle = colour;
    paper.fill(fill);
    paper.globalAlpha = 1;
    paper.strokeStyle = colour;
    paper.lineWidth = 1.8;
    paper.lineJoin = "round";
    paper.stroke(path);
  }

  crosshair(paper, y, colour, area) {
    const { in: received, out: sent } = this.series;
    const length = received.length;
    const back = this.pointer === null ? -1 : Math.round((1 - (this.pointer - area.left) / area.width) * (SAMPLES - 1));
    if (back < 0 || back >= length) {
      setText(this.value, "last 5 minutes");
      return;
    }
    const index = length - 1 - back;
    const at = this.x(index, length);
    paper.strokeStyle = colour("--quiet");
    paper.lineWidth = 1;
    paper.beginPath();
    paper.moveTo(at, area.top);
    paper.lineTo(at, area.top + area.height);
    paper.stroke();
    for (const [numbers, name] of [[sent, "--out"], [received, "--in"]]) {
      paper.fillStyle = colour(name);
      paper.beginPath();
      paper.arc(at, y(numbers[index]), 3.5, 0, 2 * Math.PI);
      paper.fill();
    }
    const when = back ? `${back} s ago` : "now";
    setText(this.value, `${when}: ${rate(received[index])} in, ${rate(sent[index])} out`);
  }
}
