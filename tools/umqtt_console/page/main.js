// The frame of the page: who is there, which view the address names, and what the console tells all open pages.
import { byId, make, toast, visible } from "./dom.js";
import { fleetView } from "./fleet.js";
import { crashesView, deviceView } from "./device.js";
import { pathView } from "./path.js";
import { topicsView } from "./topics.js";
import { brokerView } from "./broker_view.js";
import { exploreView } from "./explore.js";
import { actsView } from "./acts.js";

const TOKEN_HEADER = "X-Umqtt-Token";
// Address, title, view. Those without a title are not in the list of views.
const VIEWS = [
  ["/fleet", "Fleet", fleetView],
  ["/device", "", deviceView],
  ["/path", "Data path", pathView],
  ["/broker", "Broker", brokerView],
  ["/topics", "Topics", topicsView],
  ["/crashes", "Crashes", crashesView],
  ["/explore", "Explore", exploreView],
  ["/acts", "Act", actsView],
];

export class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const app = { me: null, api, ask, go, address, may, told: { tables: null, brokers: null } };
let view = null;
let stream = null;
let round = 0;

// Ask the API for JSON: parameters that are no texts are sent as JSON.
async function api(path, parameters = {}, body = null) {
  const response = await ask(path, body, parameters);
  return response.json();
}

async function ask(path, body = null, parameters = {}, method = body ? "POST" : "GET") {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined) query.set(name, typeof value === "object" ? JSON.stringify(value) : value);
  }
  const headers = { ...(body && { "Content-Type": "application/json" }), ...(app.me?.token && method !== "GET" && { [TOKEN_HEADER]: app.me.token }) };
  let response;
  try {
    response = await fetch(`/api/${path}${query.size ? `${path.includes("?") ? "&" : "?"}${query}` : ""}`, { method, headers, body: body && JSON.stringify(body), cache: "no-store" });
  } catch {
    throw new RequestError(0, "The console does not answer.");
  }
  if (response.status === 401 && app.me?.name) start();
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  throw new RequestError(response.status, answer?.error?.message ?? `HTTP status ${response.status}`);
}

const ROLES = ["read", "operate", "admin"];
function may(role) { return ROLES.indexOf(app.me?.role) >= ROLES.indexOf(role); }

// Addresses: a view and its parameters, so that each view of anything can be saved and sent.

function address(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "" && !(Array.isArray(value) && !value.length)) {
      query.set(name, Array.isArray(value) ? JSON.stringify(value) : value);
    }
  }
  return `${path}${query.size ? `?${query}` : ""}`;
}

function go(path, parameters = {}, { replace = false, draw = !replace } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address(path, parameters));
  if (draw) show();
}

function link(path, parameters, attributes, ...content) {
  return make("a", { href: address(path, parameters), ...attributes }, ...content);
}
app.link = link;

document.addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[href]");
  if (!anchor || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const target = new URL(anchor.href);
  if (target.origin !== location.origin || anchor.hasAttribute("download") || target.hash || target.pathname.startsWith("/api/")) return;
  event.preventDefault();
  history.pushState(null, "", anchor.href);
  show();
  byId("main").focus({ preventScroll: true });
});
addEventListener("popstate", () => show());

// Views

async function show() {
  if (!app.me?.name) return;
  const path = location.pathname === "/" ? "/fleet" : location.pathname;
  const [, title, open] = VIEWS.find(([one]) => one === path) ?? VIEWS[0];
  const mine = round += 1;
  view?.close?.();
  view = null;
  drawNav(path);
  const host = make("div", { class: "stack" });
  byId("view").replaceWith(host);
  host.id = "view";
  if (title) document.title = `${title} · umqtt`;
  scrollTo(0, 0);
  const parameters = new URLSearchParams(location.search);
  try {
    const opened = await open(host, parameters, app);
    if (mine !== round) {
      opened?.close?.();
      return;
    }
    view = opened;
    listen();
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    if (mine === round && error.status !== 401) host.append(make("p", { class: "banner" }, visible(error.message)));
  }
  document.body.dataset.state = "ready";
}

function drawNav(path) {
  const entries = VIEWS.filter(([, title]) => title).map(([one, title]) =>
    make("a", { href: one, "aria-current": one === path || (path === "/device" && one === "/fleet") ? "page" : null }, title));
  const links = make("div", { class: "links", id: "links" });
  byId("nav").replaceChildren(make("div", { class: "brand" }, make("img", { src: "/icon.svg", alt: "" }), make("span", {}, "umqtt")), ...entries, links);
  drawLinks();
}

function state(good, text, title) {
  return make("div", { class: `state ${good ? "ok" : "bad"}`, title }, make("span", { class: "mark", "aria-hidden": "true" }, good ? "●" : "■"), make("span", {}, text));
}

function drawLinks() {
  const { me, told } = app;
  if (!byId("links") || !me?.name) return;
  const brokers = (told.brokers ?? me.brokers).map(({ where, connected, problem }) =>
    state(connected, connected ? where.replace(/^mqtts?:\/\//, "") : `${where.replace(/^mqtts?:\/\//, "")} away`, problem));
  const who = me.login ? [make("div", {}, `${visible(me.name)}, ${me.role} `, make("button", { class: "button", type: "button", onclick: logout }, "Log out"))] : [];
  byId("links").replaceChildren(...brokers, state(!told.tables?.problem, "tables", told.tables?.problem || me.tables), ...who, make("div", {}, `version ${me.version}`));
  const problems = [
    told.tables?.problem && `${told.tables.problem}. What is shown was read before.`,
    ...(told.brokers ?? me.brokers).filter((one) => !one.connected).map((one) => `${one.where}: ${one.problem}. Live values and commands wait for it.`),
  ].filter(Boolean);
  banner("links", problems);
}

// A banner says what is wrong and stays until it is right again.
const banners = new Map();
function banner(key, texts) {
  if (JSON.stringify(banners.get(key) ?? []) === JSON.stringify(texts)) return;
  banners.set(key, texts);
  byId("banners").replaceChildren(...[...banners.values()].flat().map((text) => make("p", { class: "banner warn" }, visible(text))));
}

// What the console tells

function listen() {
  const watch = view?.watch ?? "";
  if (stream?.watch === watch && stream.source.readyState !== EventSource.CLOSED) return;
  stream?.source.close();
  const source = new EventSource(`/api/events${watch ? `?watch=${encodeURIComponent(watch)}` : ""}`);
  stream = { watch, source };
  let lost = false;
  source.addEventListener("hello", () => {
    banner("down", []);
    document.body.dataset.state = "ready";
    if (lost) refresh();
    lost = false;
  });
  source.addEventListener("tables", ({ data }) => {
    const before = app.told.tables;
    app.told.tables = JSON.parse(data);
    drawLinks();
    if (before || app.told.tables.problem === "") refresh(app.told.tables.versions);
  });
  source.addEventListener("brokers", ({ data }) => {
    app.told.brokers = JSON.parse(data);
    drawLinks();
    view?.brokers?.();
  });
  source.addEventListener("message", ({ data }) => view?.message?.(JSON.parse(data)));
  source.addEventListener("act", ({ data }) => view?.act?.(JSON.parse(data)));
  source.onerror = async () => {
    lost = true;
    banner("down", ["The console does not answer. It may have stopped; the page goes on as soon as it is back."]);
    document.body.dataset.state = "down";
    const me = await api("me").catch(() => null);
    if (me && !me.name) start();
    else if (me && source.readyState === EventSource.CLOSED) setTimeout(() => { if (stream?.source === source) listen(); }, 2000);
    if (me) app.me = me;
  };
}

let busy = false;
let again = false;
async function refresh(versions = null) {
  if (document.hidden) {
    again = true;
    return;
  }
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  again = false;
  try {
    await view?.refresh?.(versions);
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
  } finally {
    busy = false;
  }
  // Tables may change every second, and nobody reads as fast.
  if (again) setTimeout(refresh, 2000);
}
document.addEventListener("visibilitychange", () => { if (!document.hidden && again) refresh(); });

// Who is there

async function start() {
  try {
    app.me = await api("me");
  } catch (error) {
    byId("view").replaceChildren(make("p", { class: "banner" }, error.message));
    setTimeout(start, 2000);
    return;
  }
  if (app.me.name) await show();
  else drawLogin();
}

function drawLogin() {
  view?.close?.();
  view = null;
  stream?.source.close();
  stream = null;
  byId("nav").replaceChildren();
  const error = make("p", { class: "error", role: "alert" });
  const name = make("input", { name: "name", autocomplete: "username", required: true, autocapitalize: "off", spellcheck: "false" });
  const password = make("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const submit = async (event) => {
    event.preventDefault();
    error.textContent = "";
    try {
      app.me = await api("login", {}, { name: name.value, password: password.value });
    } catch (problem) {
      error.textContent = problem.message;
      password.value = "";
      password.focus();
      return;
    }
    await show();
  };
  byId("view").replaceChildren(make("section", { class: "card gate" }, make("h1", {}, "Log in"),
    make("p", { class: "quiet" }, "The view that you asked for opens afterwards."),
    make("form", { onsubmit: submit }, make("label", { class: "field" }, "Name", name), make("label", { class: "field" }, "Password", password),
      error, make("button", { class: "button primary" }, "Log in"))));
  document.body.dataset.state = "locked";
  name.focus();
}

async function logout() {
  await api("logout", {}, {}).catch((error) => toast(error.message));
  app.told = { tables: null, brokers: null };
  await start();
}

start();
