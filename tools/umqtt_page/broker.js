// One broker: its figures, messages a second, and its clients; for the broker's own page and for the console.
import { byId, bytes, confirmed, count, duration, make, rate, setText, toast, visible } from "./dom.js";
import { Chart } from "./chart.js";
import { Table } from "./table.js";

const SAMPLES = 300;
const PAGE = 50;
const STATES = { all: "All", connected: "Connected", away: "Away", slow: "Slow" };
const SORTS = { client_id: "name", queued: "queue", in_flight: "in flight", messages_received: "messages in", messages_sent: "messages out", connected_seconds: "time connected" };
const seconds = (number) => duration(number * 1000);

// Client identifiers go into the query: a path would take "." and ".." for steps.
const sessionPath = ({ client_id, mount_point }, action = "") => `/api/sessions/-${action}?${new URLSearchParams({ client_id, mount_point })}`;
// One name for each session: a client identifier is unique behind each mount point only, and holds no NUL.
const keyOf = (session) => `${session.mount_point}\0${session.client_id}`;

// request(method, path) → JSON of the broker's API, or an error with status and message. again(): ask for update().
export class Board {
  constructor(host, request, { again, mayAct = true }) {
    Object.assign(this, { request, again, mayAct, after: "", shown: null, before: new Map(), samplesAt: 0 });
    const tile = (id, title, per, { box = null, more = null } = {}) => make("div", { class: "tile", id: box }, make("h2", {}, title),
      make("p", { class: "figure" }, make("span", { id: `f-${id}` }, "–"), per ? make("small", {}, per) : null), make("p", { class: "quiet" }, make("span", { id: `f-${id}-note` }), more));
    this.showSlow = make("button", { type: "button", class: "inline", id: "show-slow", hidden: true, onclick: () => this.choose("slow") }, "show");
    this.chart = new Chart({ title: "Messages", unit: "a second, over the last five minutes", write: rate, zero: true, height: 200 });
    this.search = make("input", { id: "search", type: "search", placeholder: "Search client, user or address", "aria-label": "Search clients", spellcheck: "false", autocapitalize: "off" });
    this.sort = make("select", { id: "sort", "aria-label": "Sort by", onchange: () => this.restart() }, Object.entries(SORTS).map(([value, text]) => make("option", { value }, text)));
    this.state = make("div", { class: "span tabs", role: "group", "aria-label": "Show" }, Object.entries(STATES).map(([value, text]) =>
      make("button", { type: "button", class: "button", value, "aria-pressed": String(value === "all"), onclick: () => this.choose(value) }, text)));
    this.matched = make("p", { id: "matched", class: "quiet", role: "status" });
    this.table = new Table({ label: "Clients", first: PAGE, columns: this.columns(), source: () => null, key: keyOf });
    this.table.body.id = "rows";
    this.table.none.id = "empty";
    this.firstPage = make("button", { type: "button", class: "button", hidden: true, onclick: () => this.restart() }, "First page");
    this.nextPage = make("button", { type: "button", class: "button", hidden: true, onclick: () => { this.after = this.next; again(); } }, "Next page");
    this.detail = make("dialog", { id: "detail", "aria-labelledby": "detail-title" });
    this.detail.addEventListener("close", () => { this.shown = null; });
    host.append(
      make("section", { class: "tiles", "aria-label": "Figures" }, tile("clients", "Clients"), tile("in", "Messages in", "/s"), tile("out", "Messages out", "/s"), tile("queued", "Queued"),
        tile("slow", "Slow consumers", "", { box: "tile-slow", more: this.showSlow }), tile("dropped", "Dropped", "", { box: "tile-dropped" }), tile("retained", "Retained"), tile("commits", "Store commits", "/s", { box: "tile-store" })),
      this.chart.node,
      make("section", { class: "card", id: "clients", "aria-label": "Clients", tabindex: "-1" }, make("div", { class: "head" }, make("h2", {}, "Clients"), this.matched),
        make("div", { class: "bar" }, this.search, this.state, this.sort), this.table.node, make("div", { class: "row pages" }, this.firstPage, this.nextPage)),
      this.detail);
    let typing = 0;
    this.search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => this.restart(), 200); });
  }

  columns() {
    const number = (key, title, write) => ({ key, title, right: true, fixed: true, write });
    return [
      { key: "client_id", title: "Client", fixed: true, write: (id, session) => make("span", { class: "row client" },
        make("span", { class: `mark ${session.connected ? "on" : ""}`, role: "img", "aria-label": session.connected ? "connected" : "away" }, session.connected ? "●" : "○"),
        make("button", { type: "button", class: "open", onclick: () => this.open(session) }, visible(id)),
        make("span", { class: "tag slow", hidden: !session.slow, title: "takes messages more slowly than they come" }, "slow"),
        make("span", { class: "tag", hidden: !session.held_back, title: "read from more slowly: its rate, or a full queue that it publishes into" }, "held back")) },
      { key: "address", title: "Address", fixed: true, none: "away" },
      number("in", "In /s", (value) => make("span", { class: "rate" }, rate(value))),
      number("out", "Out /s", (value) => make("span", { class: "rate" }, rate(value))),
      number("queued", "Queued", (value, { queued_bytes: size }) => make("span", { title: bytes(size) }, count(value))),
      number("in_flight", "In flight", count),
      number("connected_seconds", "Connected", seconds),
      ...this.mayAct ? [{ key: "kick", title: "", fixed: true, none: "", write: (value, session) => make("button", { type: "button", class: "button small", "aria-label": `Kick ${visible(session.client_id)}`, onclick: () => this.kick(session) }, "Kick") }] : [],
    ];
  }

  restart() {
    this.after = "";
    this.again();
  }

  // Show only the sessions in a state, and go there.
  choose(state) {
    for (const button of this.state.children) button.setAttribute("aria-pressed", String(button.value === state));
    if (state === "slow") this.search.value = "";
    this.restart();
  }

  // Ask for everything that is shown, and show it; return the broker's figures.
  async update() {
    const broker = await this.request("GET", "/api/broker");
    await this.drawChart(broker);
    this.drawTiles(broker);
    await this.drawSessions();
    return broker;
  }

  async drawChart(broker) {
    const now = performance.now();
    // After a gap (a hidden tab, a lost broker) the broker's own history fills it.
    if (!this.samplesAt || now - this.samplesAt > 2500) {
      const { rates } = await this.request("GET", "/api/history");
      this.rates = { in: rates.messages_received, out: rates.messages_sent };
    } else {
      this.rates.in.push(broker.rates.messages_received);
      this.rates.out.push(broker.rates.messages_sent);
    }
    this.samplesAt = now;
    for (const values of Object.values(this.rates)) values.splice(0, values.length - SAMPLES);
    const end = Date.now();
    const x = this.rates.in.map((_, at) => end - (this.rates.in.length - 1 - at) * 1000);
    this.chart.set(x, [{ name: "in", values: this.rates.in, tone: "a" }, { name: "out", values: this.rates.out, tone: "b" }], end - SAMPLES * 1000, end);
  }

  drawTiles({ clients, messages, rates, store, subscriptions }) {
    const say = (id, figure, note) => { setText(byId(`f-${id}`), figure); setText(byId(`f-${id}-note`), note); };
    const mark = (id, name, isOn) => byId(id).classList.toggle(name, isOn);
    say("clients", count(clients.connected), `${count(clients.away)} away · ${count(clients.maximum)} at most`);
    say("in", rate(rates.messages_received), `${bytes(rates.bytes_received)}/s · ${count(messages.received)} in all`);
    say("out", rate(rates.messages_sent), `${bytes(rates.bytes_sent)}/s · ${count(messages.sent)} in all`);
    say("queued", count(messages.queued), `${bytes(messages.queued_bytes)} · ${count(messages.in_flight)} in flight`);
    say("slow", count(clients.slow), clients.slow ? "falling behind " : "all keep up");
    this.showSlow.hidden = !clients.slow;
    mark("tile-slow", "warn", clients.slow > 0);
    const reasons = Object.entries(messages.dropped_by_reason).filter(([, number]) => number);
    say("dropped", count(messages.dropped), reasons.map(([reason, number]) => `${count(number)} ${reason.replaceAll("_", " ")}`).join(" · ") || "none since the start");
    mark("tile-dropped", "warn", rates.dropped > 0);
    say("retained", count(messages.retained), `${count(subscriptions)} subscriptions`);
    say("commits", store.durable ? rate(rates.commits) : "–", !store.durable ? "kept in memory only"
      : store.commit_failures ? `${count(store.commit_failures)} failed` : `${count(store.commits)} in all, none failed`);
    mark("tile-store", "bad", store.commit_failures > 0);
  }

  async drawSessions() {
    const state = [...this.state.children].find((one) => one.getAttribute("aria-pressed") === "true").value;
    const query = new URLSearchParams({ limit: String(PAGE), search: this.search.value.trim(), state, sort: this.sort.value, after: this.after });
    const page = await this.request("GET", `/api/sessions?${query}`);
    this.next = page.next;
    const now = performance.now();
    const seen = new Map();
    const rows = page.sessions.map((session) => {
      // The same connection as last time: how much its counters grew is its rate.
      const before = this.before.get(keyOf(session));
      const same = before?.session.connected && session.connected && session.connected_seconds >= before.session.connected_seconds;
      const passed = same ? (now - before.at) / 1000 : 0;
      const grown = (name) => Math.max(0, session[name] - before.session[name]) / passed;
      const fresh = passed > 0.2 || !same;
      const rates = passed > 0.2 ? { in: grown("messages_received"), out: grown("messages_sent") } : same ? before.rates : { in: null, out: null };
      seen.set(keyOf(session), fresh ? { session, at: now, rates } : { ...before, rates });
      return { ...session, ...rates, kick: session.connected || null };
    });
    this.before = seen;
    const filtered = this.search.value.trim() || state !== "all";
    setText(this.table.none, filtered ? "No client matches." : "No clients yet. The first one to connect appears here.");
    this.table.show(rows);
    setText(this.matched, page.matched > rows.length ? `${count(rows.length)} of ${count(page.matched)}` : count(page.matched));
    this.nextPage.hidden = !page.next;
    this.firstPage.hidden = !this.after;
    if (this.shown) await this.drawDetail();
  }

  // Details

  async open(session) {
    this.shown = session;
    try {
      await this.drawDetail();
    } catch (error) {
      this.shown = null;
      toast(error.message);
    }
  }

  async drawDetail() {
    const { shown } = this;
    let found;
    try {
      found = await this.request("GET", sessionPath(shown));
    } catch (error) {
      if (error.status !== 404) throw error;
      this.detail.close();
      toast(`${visible(shown.client_id)} is gone.`);
      return;
    }
    if (this.shown !== shown) return;
    const { session, topic_filters: filters } = found;
    const facts = [
      ["State", session.connected ? `connected for ${seconds(session.connected_seconds)}` : "away"],
      ["Session", session.clean_session ? "ends with the connection" : "kept while away"],
      ["Address", session.address ? visible(session.address) : "–"],
      ["Listener", (session.listener ?? "–") + (session.mount_point ? ` · ${visible(session.mount_point)}` : "")],
      ["User name", session.username === null ? "–" : visible(session.username)],
      ["Keep-alive", session.keep_alive === null ? "–" : session.keep_alive ? `${session.keep_alive} s` : "off"],
      ["Messages in", session.connected ? `${count(session.messages_received)} · ${rate(found.received_per_second)}/s` : "–"],
      ["Messages out", session.connected ? `${count(session.messages_sent)} · ${rate(found.sent_per_second)}/s` : "–"],
      ["Queued", `${count(session.queued)} · ${bytes(session.queued_bytes)}`],
      ["In flight", count(session.in_flight) + (session.slow ? " · slow" : "")],
    ];
    const items = filters.map(({ topic_filter: filter, qos }) => make("li", {}, make("code", {}, visible(filter)), make("span", { class: "quiet" }, `QoS ${qos}`)));
    if (session.subscriptions > items.length) items.push(make("li", {}, `… ${count(session.subscriptions)} in all`));
    if (!this.detail.open || !this.list) {
      this.list = make("dl", { class: "facts", id: "detail-list" });
      this.filters = make("ul", { class: "topics", id: "detail-filters" });
      this.kickButton = make("button", { type: "button", class: "button", id: "detail-kick", onclick: () => this.kick(shown) }, "Kick…");
      this.detail.replaceChildren(make("div", { class: "head" }, make("h2", { id: "detail-title" }, visible(session.client_id)),
        make("button", { type: "button", class: "button", "aria-label": "Close", onclick: () => this.detail.close() }, "✕")), this.list, make("h3", {}, "Subscriptions"), this.filters,
      make("div", { class: "actions" }, ...this.mayAct ? [make("button", { type: "button", class: "button", id: "detail-forget", onclick: () => this.forget(shown) }, "Forget session…"), this.kickButton] : []));
    }
    this.list.replaceChildren(...facts.map(([title, value]) => make("div", {}, make("dt", {}, title), make("dd", {}, value))));
    this.filters.replaceChildren(...items.length ? items : [make("li", {}, "none")]);
    this.kickButton.hidden = !session.connected;
    if (!this.detail.open) this.detail.showModal();
  }

  async kick(session) {
    const name = visible(session.client_id);
    const text = "Its connection is cut and its will is published. Most clients connect again by themselves.";
    if (await confirmed(`Kick ${name}?`, text, "Kick")) await this.act("POST", sessionPath(session, "/kick"), `${name} was kicked.`);
  }

  async forget(session) {
    const name = visible(session.client_id);
    const text = "Its subscriptions and every message that waits for it are deleted. This cannot be taken back.";
    if (!await confirmed(`Forget the session of ${name}?`, text, "Forget")) return;
    if (await this.act("DELETE", sessionPath(session), `The session of ${name} is gone.`)) this.detail.close();
  }

  async act(method, path, done) {
    try {
      await this.request(method, path);
    } catch (error) {
      toast(error.message);
      return false;
    }
    toast(done);
    this.again();
    return true;
  }

  close() {
    this.chart.destroy();
    this.detail.remove();
  }
}

