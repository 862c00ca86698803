// The table of clients: one row a session, kept in place from one answer to the next; details, kick, forget.
import { byId, bytes, confirmed, count, duration, element, rate, setText, toast, visible } from "./dom.js";

const PAGE = 50;

// Client identifiers go into the query: a path would take "." and ".." for steps.
function sessionPath({ client_id, mount_point }, action = "") {
  return `/api/sessions/-${action}?${new URLSearchParams({ client_id, mount_point })}`;
}

// One name for each session: a client identifier is unique behind each mount point only, and holds no NUL.
const keyOf = (session) => `${session.mount_point}\0${session.client_id}`;

export class Sessions {
  constructor(request, refresh) {
    this.request = request;
    this.refresh = refresh;
    this.rows = new Map();
    this.after = "";
    this.shown = null;
    const restart = () => { this.after = ""; refresh(); };
    let typing = 0;
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
    byId("search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(restart, 200); });
    byId("sort").addEventListener("change", restart);
    for (const radio of document.querySelectorAll("input[name=state]")) radio.addEventListener("change", restart);
    byId("first").addEventListener("click", restart);
    byId("next").addEventListener("click", () => { this.after = this.next; refresh(); });
    byId("detail-close").addEventListener("click", () => byId("detail").close());
    byId("detail").addEventListener("close", () => { this.shown = null; });
    byId("detail-kick").addEventListener("click", () => this.kick(this.shown));
    byId("detail-forget").addEventListener("click", () => this.forget(this.shown));
  }

  // Show only the sessions in a state, and go there.
  filter(state) {
    byId("search").value = "";
    const radio = document.querySelector(`input[name=state][value=${state}]`);
    radio.checked = true;
    this.after = "";
    byId("clients").scrollIntoView({ behavior: "smooth" });
    radio.focus({ preventScroll: true });
    this.refresh();
  }

  async update() {
    const query = new URLSearchParams({
      limit: String(PAGE),
      search: byId("search").value.trim(),
      state: document.querySelector("input[name=state]:checked").value,
      sort: byId("sort").value,
      after: this.after,
    });
    const page = await this.request("GET", `/api/sessions?${query}`);
    this.next = page.next;
    this.show(page);
    if (this.shown !== null) await this.updateDetail();
  }

  show(page) {
    const now = performance.now();
    const body = byId("rows");
    const kept = new Map();
    page.sessions.forEach((session, index) => {
      const key = keyOf(session);
      const row = this.rows.get(key) ?? this.makeRow(session);
      this.fill(row, session, now);
      kept.set(key, row);
      if (body.children[index] !== row.node) body.insertBefore(row.node, body.children[index] ?? null);
    });
    for (const [key, row] of this.rows) if (!kept.has(key)) row.node.remove();
    this.rows = kept;
    const filtered = byId("search").value.trim() || document.querySelector("input[name=state]:checked").value !== "all";
    const empty = page.sessions.length === 0;
    byId("empty").hidden = !empty;
    document.querySelector(".scroll").hidden = empty;
    setText("empty", filtered ? "No client matches." : "No clients yet. The first one to connect appears here.");
    const rest = page.matched - page.sessions.length;
    setText("matched", rest > 0 ? `${count(page.sessions.length)} of ${count(page.matched)}` : count(page.matched));
    byId("next").hidden = !page.next;
    byId("first").hidden = !this.after;
  }

  makeRow(session) {
    const shownName = visible(session.client_id);
    const node = element("tr");
    const name = element("td", "name");
    const client = element("div", "client");
    const state = element("span", "dot");
    state.setAttribute("role", "img");
    const open = element("button", "open", shownName);
    open.type = "button";
    open.title = shownName;
    open.addEventListener("click", () => this.open(session));
    const tag = element("span", "tag slow", "slow");
    tag.title = "takes messages more slowly than they come";
    const held = element("span", "tag", "held back");
    held.title = "read from more slowly: its rate, or a full queue that it publishes into";
    client.append(state, open, tag, held);
    name.append(client);
    const cell = (className, label) => {
      const made = element("td", className);
      if (label) made.dataset.label = label;
      return made;
    };
    const row = {
      node, client, state, tag, held,
      address: cell("address where"),
      received: cell("n rate", "in /s"),
      sent: cell("n rate", "out /s"),
      queued: cell("n load", "queued"),
      inFlight: cell("n load", "in flight"),
      since: cell("n since"),
      kick: element("button", "button small", "Kick"),
    };
    row.kick.type = "button";
    row.kick.setAttribute("aria-label", `Kick ${shownName}`);
    row.kick.addEventListener("click", () => this.kick(session));
    const actions = element("td");
    actions.append(row.kick);
    node.append(name, row.address, row.received, row.sent, row.queued, row.inFlight, row.since, actions);
    return row;
  }

  fill(row, session, now) {
    const before = row.session;
    // The same connection as last time: how much its counters grew is its rate.
    const same = before?.connected && session.connected && session.connected_seconds >= before.connected_seconds;
    const seconds = same ? (now - row.at) / 1000 : 0;
    const grown = (name) => (seconds > 0.2 ? Math.max(0, session[name] - before[name]) / seconds : null);
    const shown = (cell, value, text) => {
      setText(cell, text);
      cell.classList.toggle("zero", !value);
    };
    row.client.classList.toggle("on", session.connected);
    row.state.setAttribute("aria-label", session.connected ? "connected" : "away");
    row.tag.hidden = !session.slow;
    row.held.hidden = !session.held_back;
    setText(row.address, session.address ? visible(session.address) : "away");
    for (const [cell, name] of [[row.received, "messages_received"], [row.sent, "messages_sent"]]) {
      const value = grown(name);
      if (value !== null) shown(cell, value, rate(value));
      else if (!session.connected || !before) shown(cell, 0, "–");
    }
    shown(row.queued, session.queued, count(session.queued));
    row.queued.title = bytes(session.queued_bytes);
    shown(row.inFlight, session.in_flight, count(session.in_flight));
    setText(row.since, session.connected ? duration(session.connected_seconds) : "–");
    row.kick.hidden = !session.connected;
    if (!same || seconds > 0.2) {
      row.session = session;
      row.at = now;
    }
  }

  // Details

  async open(session) {
    this.shown = session;
    try {
      await this.updateDetail();
    } catch (error) {
      this.shown = null;
      toast(error.message);
    }
  }

  async updateDetail() {
    const { shown } = this;
    const name = visible(shown.client_id);
    let found;
    try {
      found = await this.request("GET", sessionPath(shown));
    } catch (error) {
      if (error.status !== 404) throw error;
      byId("detail").close();
      toast(`${name} is gone.`);
      return;
    }
    if (this.shown !== shown) return;
    const { session } = found;
    setText("detail-title", name);
    const facts = [
      ["State", session.connected ? `connected for ${duration(session.connected_seconds)}` : "away"],
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
    const list = byId("detail-list");
    facts.forEach(([label, value], index) => {
      if (!list.children[index]) {
        const pair = element("div");
        pair.append(element("dt", "", label), element("dd"));
        list.append(pair);
      }
      setText(list.children[index].lastChild, value);
    });
    const items = found.topic_filters.map(({ topic_filter: filter, qos }) => {
      const item = element("li");
      item.append(element("span", "", visible(filter)), element("span", "", `QoS ${qos}`));
      return item;
    });
    if (session.subscriptions > items.length) items.push(element("li", "", `… ${count(session.subscriptions)} in all`));
    if (!items.length) items.push(element("li", "", "none"));
    const filters = byId("detail-filters");
    if (filters.textContent !== items.map((item) => item.textContent).join("")) filters.replaceChildren(...items);
    byId("detail-kick").hidden = !session.connected;
    if (!byId("detail").open) byId("detail").showModal();
  }

  async kick(session) {
    const name = visible(session.client_id);
    const text = "Its connection is cut and its will is published. Most clients connect again by themselves.";
    if (!await confirmed(`Kick ${name}?`, text, "Kick")) return;
    await this.act("POST", sessionPath(session, "/kick"), `${name} was kicked.`);
  }

  async forget(session) {
    const name = visible(session.client_id);
    const text = "Its subscriptions and every message that waits for it are deleted. This cannot be taken back.";
    if (!await confirmed(`Forget the session of ${name}?`, text, "Forget")) return;
    if (await this.act("DELETE", sessionPath(session), `The session of ${name} is gone.`)) {
      byId("detail").close();
    }
  }

  async act(method, path, done) {
    try {
      await this.request(method, path);
    } catch (error) {
      toast(error.message);
      return false;
    }
    toast(done);
    this.refresh();
    return true;
  }
}
