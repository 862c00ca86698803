// Topics: the newest message of each, as a tree; what the decoder rules make of one.
import { ago, bytes, count, make, pill, setText, stamp, visible } from "./dom.js";

export async function topicsView(host, parameters, app) {
  const state = { filter: parameters.get("filter") ?? "#", search: parameters.get("search") ?? "", topic: parameters.get("topic") ?? "" };
  const open = new Set(JSON.parse(sessionStorage.getItem("umqtt-open") ?? "[]"));
  const filter = make("input", { value: state.filter, "aria-label": "Topic filter", size: 18, spellcheck: "false" });
  const search = make("input", { type: "search", value: state.search, placeholder: "Search topics", "aria-label": "Search topics", spellcheck: "false" });
  const status = make("p", { class: "quiet", role: "status" });
  const tree = make("div", { class: "tree" });
  const detail = make("section", { class: "card", "aria-label": "Message", hidden: true });
  const subscribe = (event) => { event.preventDefault(); app.go("/topics", { filter: filter.value.trim() || "#", search: search.value }); };
  host.append(make("div", { class: "top" }, make("h1", {}, "Topics"), status), make("section", { class: "card", "aria-label": "Topics" },
    make("form", { class: "bar", onsubmit: subscribe }, search, filter, make("button", { class: "button" }, "Subscribe")), tree), detail);
  host.classList.add("split");

  const rows = new Map();
  const save = () => app.go("/topics", { filter: state.filter === "#" ? "" : state.filter, search: state.search, topic: state.topic }, { replace: true });

  async function level(prefix, node) {
    const found = await app.api("topics", { prefix, search: state.search });
    const names = found.names;
    if (!prefix) setText(status, found.connected ? `${count(names.reduce((sum, one) => sum + one.messages, 0))} messages since this was opened` : "no broker is connected");
    node.replaceChildren(...names.map((entry) => row(prefix, entry)));
    if (!prefix && !names.length) node.append(make("p", { class: "empty" }, "Nothing has come yet. Retained messages come at once, others when they are published."));
    return names;
  }

  function row(prefix, { name, topics, messages, at, newest }) {
    const topic = prefix + name;
    const children = make("div", { class: "children", role: "group", hidden: true });
    const value = newest ? make("span", { class: "payload" }, brief(newest.payload)) : null;
    const fold = topics ? make("button", { type: "button", class: "fold", "aria-expanded": "false", "aria-label": `Topics below ${visible(topic)}`, onclick: () => toggle() }, "▸") : make("span", { class: "fold" });
    const label = make("button", { type: "button", class: "open", onclick: () => (newest ? choose(topic) : toggle()) }, visible(name) || "(empty)");
    const node = make("div", { class: "topic" }, make("div", { class: `line${topic === state.topic ? " chosen" : ""}` }, fold, label,
      newest?.retained ? make("span", { class: "tag" }, "retained") : null, value,
      make("span", { class: "quiet" }, topics ? `${count(topics)} below, ` : "", `${count(messages)} × `, ago(at))), children);
    async function toggle(to = children.hidden) {
      if (!fold.matches("button")) return;
      children.hidden = !to;
      fold.setAttribute("aria-expanded", String(to));
      fold.textContent = to ? "▾" : "▸";
      if (to) open.add(`${topic}/`);
      else open.delete(`${topic}/`);
      sessionStorage.setItem("umqtt-open", JSON.stringify([...open].slice(-200)));
      if (to) await level(`${topic}/`, children);
    }
    rows.set(topic, node);
    if (open.has(`${topic}/`) || state.topic.startsWith(`${topic}/`) || (state.search && topics && topics < 30)) toggle(true);
    return node;
  }

  async function choose(topic) {
    state.topic = topic;
    save();
    for (const [one, node] of rows) node.firstChild.classList.toggle("chosen", one === topic);
    await show();
  }

  let last = "";
  async function show() {
    const [message] = (await app.api("newest", { filter: state.topic })).messages;
    detail.hidden = !message;
    if (!message) return;
    const text = message.payload.encoding === "hex" ? message.payload.text : pretty(message.payload.text);
    const explained = app.me.parts.rules ? await app.api("explain", { topic: state.topic }).catch((error) => ({ problem: error.message })) : null;
    const now = JSON.stringify([message.at, explained]);
    if (now === last) return;
    last = now;
    detail.replaceChildren(make("div", { class: "head" }, make("h2", {}, visible(message.topic)), message.retained ? make("span", { class: "tag" }, "retained") : null),
      make("p", { class: "quiet" }, `${bytes(message.size)}, ${stamp(message.at)}, ${count(message.count)} since this was opened${message.payload.encoding === "hex" ? ", in hex" : ""}`),
      make("pre", { tabindex: "0", "aria-label": "Payload" }, visiblePayload(text)), ...explained ? [decoded(explained)] : []);
  }

  let timer = 0;
  function soon() {
    timer ||= setTimeout(async () => {
      timer = 0;
      // Only what is in view is fetched; an open branch fetches its own level.
      const focused = document.activeElement?.closest(".topic");
      if (!focused) { rows.clear(); await level("", tree).catch(() => {}); }
      if (state.topic) await show().catch(() => {});
    }, 1000);
  }
  let typing = 0;
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => { state.search = search.value.trim(); save(); rows.clear(); level("", tree); }, 150); });
  await level("", tree);
  if (state.topic) await show();
  return { watch: state.filter, message: soon, brokers: soon, close: () => { clearTimeout(timer); clearTimeout(typing); } };
}

function decoded({ explained, problem }) {
  const part = make("div", { class: "stack" }, make("h3", {}, "What the rules make of it"));
  if (!explained) {
    part.append(make("p", { class: "quiet" }, visible(problem)));
    return part;
  }
  part.append(make("p", { class: "quiet" }, `Rule: ${visible(explained.rule || "none, it is read as our own firmware")}`));
  for (const reading of explained.readings) {
    part.append(make("p", {}, pill("ok", "reading"), ` ${visible(reading.device_id)}${reading.seq === null ? "" : `, ${visible(reading.boot)} ${reading.seq}`}, ${visible(reading.event_ts)}`),
      make("dl", { class: "facts" }, ...Object.entries({ ...reading.metrics, ...reading.texts }).map(([name, value]) => make("div", {}, make("dt", {}, visible(name)), make("dd", {}, visible(value))))));
  }
  if (explained.status) part.append(make("p", {}, pill("ok", "status"), ` ${visible(explained.status.device_id)} is ${explained.status.online ? "online" : "offline"}`));
  if (explained.log) part.append(make("p", {}, pill("ok", "log line")));
  for (const reason of explained.reasons) part.append(make("p", {}, pill("refused"), ` ${visible(reason)}`));
  if (explained.ignored) part.append(make("p", { class: "quiet" }, "No value in it, or left out by the rule."));
  return part;
}

const brief = ({ text }) => visible(text.length > 120 ? `${text.slice(0, 120)}…` : text) || "(empty)";
const visiblePayload = (text) => text.split("\n").map(visible).join("\n");
function pretty(text) {
  try {
    const found = JSON.parse(text);
    return typeof found === "object" ? JSON.stringify(found, null, 2) : text;
  } catch {
    return text;
  }
}
