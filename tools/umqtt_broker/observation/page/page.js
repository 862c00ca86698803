// The page: holds the token, asks the broker once a second, shows the figures.
import { Chart } from "./chart.js";
import { byId, bytes, count, duration, element, rate, setText, visible } from "./dom.js";
import { Sessions } from "./sessions.js";

const INTERVAL = 1000;
const SLOWEST = 10000;
const PATIENCE = 8000;
const KEY = "umqtt-broker-token";

class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let token = takeToken();
let failures = 0;
let timer = 0;
let running = false;
let again = false;
let samplesAt = 0;

const chart = new Chart(byId("chart"), byId("chart-value"));
const sessions = new Sessions(request, () => poll());

// A link with #token=… : out of the address bar and the history before anything else happens.
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given !== null) {
    history.replaceState(null, "", location.pathname);
    sessionStorage.setItem(KEY, given);
  }
  return sessionStorage.getItem(KEY) ?? "";
}

async function request(method, path) {
  let response;
  // What cannot stand in a header cannot be the token either.
  if (!/^[\x21-\x7e]+$/.test(token)) throw new RequestError(401, "");
  try {
    response = await fetch(path, {
      method,
      headers: { Authorization: `Bearer ${token}` },
      credentials: "omit",
      cache: "no-store",
      signal: AbortSignal.timeout(PATIENCE),
    });
  } catch {
    throw new RequestError(0, "The broker does not answer.");
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new RequestError(response.status, body?.error?.message ?? `HTTP status ${response.status}`);
  return body;
}

function setState(state, text) {
  document.body.dataset.state = state;
  setText("link-text", text);
  byId("lock").hidden = state === "locked";
}

function lock(message) {
  clearTimeout(timer);
  sessionStorage.removeItem(KEY);
  token = "";
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  setState("locked", "locked");
  setText("token-error", message);
  byId("token").focus();
}

// One round at a time; who asks during one gets another right after it.
async function poll() {
  if (running) {
    again = true;
    return;
  }
  clearTimeout(timer);
  running = true;
  const asked = token;
  try {
    const broker = await request("GET", "/api/broker");
    await drawChart(broker);
    show(broker);
    await sessions.update();
    // An answer to a token that was given up meanwhile must not unlock the page.
    if (token === asked) {
      failures = 0;
      byId("down").hidden = true;
      setState("live", "live");
    }
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    if (token === asked) failed(error);
  } finally {
    running = false;
  }
  if (!token) return;
  const wait = again ? 0 : Math.min(INTERVAL * 2 ** Math.min(failures, 4), SLOWEST);
  again = false;
  timer = setTimeout(poll, document.hidden ? SLOWEST : wait);
}

function failed(error) {
  if (error.status === 401) {
    lock(token ? "This token is wrong. Look again where the broker says it is; a restart may have replaced it." : "");
    return;
  }
  failures += 1;
  setState("down", "disconnected");
  byId("down").hidden = false;
  setText("down", error.status
    ? `The broker refuses: ${error.message}.`
    : "The broker does not answer. It may have stopped; the figures below are its last. Trying again…");
}

async function drawChart(broker) {
  const now = performance.now();
  // After a gap (a hidden tab, a lost broker) the broker's own history fills it.
  if (!samplesAt || now - samplesAt > 2.5 * INTERVAL) {
    const { rates } = await request("GET", "/api/history");
    chart.set(rates.messages_received, rates.messages_sent);
  } else {
    chart.add(broker.rates.messages_received, broker.rates.messages_sent);
  }
  samplesAt = now;
}

function mark(id, name, isOn) {
  byId(id).classList.toggle(name, isOn);
}

function listenerText({ name, tls, certificate_expires_at: end }) {
  const days = Math.floor((end - Date.now() / 1000) / 86400);
  return !tls ? name : end === null || days >= 30 ? `${name} (TLS)` : `${name} (TLS, certificate ends in ${days} days)`;
}

function show(broker) {
  const { clients, messages, rates, store } = broker;
  setText("listeners", broker.listeners.map(listenerText).join(", ")
    + ` · up ${duration(broker.uptime_seconds)}`);
  setText("version", `version ${broker.version}`);
  setText("f-clients", count(clients.connected));
  setText("f-clients-note", `${count(clients.away)} away · ${count(clients.maximum)} at most`);
  setText("f-in", rate(rates.messages_received));
  setText("f-in-note", `${bytes(rates.bytes_received)}/s · ${count(messages.received)} in all`);
  setText("f-out", rate(rates.messages_sent));
  setText("f-out-note", `${bytes(rates.bytes_sent)}/s · ${count(messages.sent)} in all`);
  setText("f-queued", count(messages.queued));
  setText("f-queued-note", `${bytes(messages.queued_bytes)} · ${count(messages.in_flight)} in flight`);
  setText("f-slow", count(clients.slow));
  setText("f-slow-note", clients.slow ? "falling behind" : "all keep up");
  byId("show-slow").hidden = !clients.slow;
  mark("tile-slow", "warn", clients.slow > 0);
  setText("f-dropped", count(messages.dropped));
  const reasons = Object.entries(messages.dropped_by_reason).filter(([, number]) => number);
  const text = reasons.map(([reason, number]) => `${count(number)} ${reason.replaceAll("_", " ")}`).join(" · ");
  setText("f-dropped-note", text || "none since the start");
  byId("f-dropped-note").title = text;
  mark("tile-dropped", "warn", rates.dropped > 0);
  setText("f-retained", count(messages.retained));
  setText("f-retained-note", `${count(broker.subscriptions)} subscriptions`);
  setText("f-commits", store.durable ? rate(rates.commits) : "–");
  setText("f-commits-note", !store.durable ? "kept in memory only"
    : store.commit_failures ? `${count(store.commit_failures)} failed` : `${count(store.commits)} in all, none failed`);
  mark("tile-store", "bad", store.commit_failures > 0);
  document.title = `${count(clients.connected)} clients · umqtt broker`;
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  byId("token").value = "";
  setText("token-error", "");
  sessionStorage.setItem(KEY, token);
  poll();
});
byId("show-slow").addEventListener("click", () => sessions.filter("slow"));
byId("lock").addEventListener("click", () => lock(""));
document.addEventListener("visibilitychange", () => { if (!document.hidden && token) poll(); });
addEventListener("hashchange", () => {
  token = takeToken();
  if (token) poll();
});

if (token) poll();
else lock("");
