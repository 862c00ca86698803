// A table: sorts by its headings, and has only the rows in view as elements, fetched a page at a time.
import { count, make, setText, visible } from "./dom.js";

const ROW = 40;
const PAGE = 100;
const BEYOND = 12;

// A source of rows that are here already. Unknown values come last; equal ones keep their order.
export function local(rows) {
  return async ({ offset, limit, sort, down }) => {
    const ordered = sort ? [...rows].sort((one, other) => {
      const [a, b] = [one[sort] ?? null, other[sort] ?? null];
      if (a === null || b === null) return (a === null) - (b === null);
      return (down ? -1 : 1) * (a < b ? -1 : a > b ? 1 : 0);
    }) : rows;
    return { rows: ordered.slice(offset, offset + limit), matched: rows.length };
  };
}

// columns: key, title, right (a number: sorts the largest first), write(value, row) → text or node; none: the text of an
// unknown value; fixed: not sortable.
// source({ offset, limit, sort, down }) → { rows, matched }.
// first: show so many rows and a button for all, instead of a box that scrolls.
// key(row): its name; a row that is drawn again keeps its elements, so that focus and clicks are not lost.
// drawn(rows): after rows came into view. sorted(sort, down): after a heading was chosen.
export class Table {
  constructor({ columns, source, first = 0, label, sort = "", down = false, key, drawn, sorted, empty = "Nothing here." }) {
    Object.assign(this, { source, first, sort, down, key, drawn, sorted, empty, label, lines: new Map() });
    this.head = make("tr");
    this.body = make("tbody");
    this.table = make("table", { "aria-label": label }, make("thead", {}, this.head), this.body);
    this.none = make("p", { class: "empty", hidden: true }, empty);
    this.more = make("button", { type: "button", class: "button more", hidden: true, onclick: () => this.showAll() });
    const box = { class: first ? "scroll" : "scroll box", role: "group", "aria-label": label, tabindex: "0" };
    this.box = make("div", box, this.table);
    this.node = make("div", { class: "listing" }, this.box, this.none, this.more);
    if (!first) {
      this.box.addEventListener("scroll", () => this.draw(), { passive: true });
      new ResizeObserver(() => this.draw()).observe(this.box);
    }
    this.setColumns(columns);
    this.reload();
  }

  setColumns(columns) {
    this.columns = columns;
    this.head.replaceChildren(...columns.map((column) => {
      const { key, title, right, fixed } = column;
      const inner = fixed ? title : make("button", { type: "button", class: "heading", onclick: () => this.choose(column) }, title);
      return make("th", { scope: "col", class: right ? "n" : "", "data-key": key }, inner);
    }));
    this.mark();
    if (this.pages) this.draw(true);
  }

  choose({ key, right }) {
    this.down = this.sort === key ? !this.down : Boolean(right);
    this.sort = key;
    this.mark();
    this.sorted?.(this.sort, this.down);
    this.reload();
  }

  mark() {
    for (const cell of this.head.children) {
      if (cell.dataset.key === this.sort) cell.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
  }

  // Fetch again: from the top, or what is in view.
  async reload(stay = false) {
    this.asked = new Map();
    this.round = (this.round ?? 0) + 1;
    if (!stay) this.box.scrollTop = 0;
    const { round } = this;
    const offset = stay && !this.first ? Math.floor(Math.floor(this.box.scrollTop / ROW) / PAGE) * PAGE : 0;
    const found = await this.source({ offset, limit: this.first || PAGE, sort: this.sort, down: this.down });
    if (round !== this.round || !found) return found;
    this.pages = new Map([[offset / PAGE, found.rows]]);
    this.asked.set(offset / PAGE, true);
    this.matched = found.matched;
    this.draw(true);
    return found;
  }

  // Show these rows, and no others.
  show(rows) {
    this.pages = new Map([[0, rows]]);
    this.matched = rows.length;
    this.draw(true);
  }

  async showAll() {
    this.first = this.matched;
    await this.reload();
  }

  rowAt(index) {
    return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  async fetchPage(page) {
    if (this.asked.has(page)) return;
    this.asked.set(page, true);
    const { round } = this;
    const found = await this.source({ offset: page * PAGE, limit: PAGE, sort: this.sort, down: this.down });
    if (round !== this.round || !found) return;
    this.pages.set(page, found.rows);
    this.draw(true);
  }

  draw(always = false) {
    if (!this.pages) return;
    const { matched } = this;
    this.none.hidden = matched > 0;
    this.box.hidden = matched === 0;
    this.table.setAttribute("aria-rowcount", matched + 1);
    if (this.first) {
      const rows = this.pages.get(0);
      this.fill(rows.map((row, at) => this.line(row, at)));
      this.more.hidden = rows.length >= matched;
      setText(this.more, `Show all ${count(matched)}`);
      this.drawn?.(rows);
      return;
    }
    const from = Math.max(0, Math.floor(this.box.scrollTop / ROW) - BEYOND);
    const to = Math.min(matched, Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW) + BEYOND);
    if (!always && from === this.from && to === this.to) return;
    [this.from, this.to] = [from, to];
    const lines = [];
    const shown = [];
    for (let at = from; at < to; at += 1) {
      const row = this.rowAt(at);
      if (row) shown.push(row);
      else this.fetchPage(Math.floor(at / PAGE));
      lines.push(this.line(row, at));
    }
    const spacer = (height) => make("tr", { class: "spacer", "aria-hidden": "true" }, make("td", { colspan: this.columns.length }));
    const [above, below] = [spacer(), spacer()];
    above.firstChild.style.height = `${from * ROW}px`;
    below.firstChild.style.height = `${(matched - to) * ROW}px`;
    this.fill([above, ...lines, below]);
    this.drawn?.(shown);
  }

  // Put the lines into the body; those that are there already stay where they are, and keep the focus.
  fill(lines) {
    lines.forEach((line, at) => { if (this.body.children[at] !== line) this.body.insertBefore(line, this.body.children[at] ?? null); });
    while (this.body.children.length > lines.length) this.body.lastChild.remove();
    if (this.key) this.lines = new Map(lines.filter((line) => line.key !== undefined).map((line) => [line.key, line]));
  }

  line(row, at) {
    const made = this.makeLine(row, at);
    if (!this.key || !row) return made;
    made.key = this.key(row);
    const known = this.lines.get(made.key);
    if (!known || known.cells.length !== made.cells.length) return made;
    [...made.cells].forEach((cell, index) => { if (!known.cells[index].isEqualNode(cell)) known.cells[index].replaceWith(cell); });
    known.className = made.className;
    known.setAttribute("aria-rowindex", at + 2);
    return known;
  }

  makeLine(row, at) {
    const line = make("tr", { class: `${at % 2 ? "odd" : ""}${row?.over ? " over" : ""}`, "aria-rowindex": at + 2 });
    for (const { key, right, write, none = "–" } of this.columns) {
      const value = row?.[key] ?? null;
      const cell = make("td", { class: right ? "n" : "", "data-key": key });
      if (!row) cell.append("…");
      else if (value === null && !(write && write.length === 0)) cell.append(make("span", { class: "none" }, none));
      else cell.append(write ? write(value, row) : visible(value));
      line.append(cell);
    }
    return line;
  }
}
