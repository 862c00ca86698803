// The page: holds the token, asks the broker once a second, shows the figures.
import { Board } from "./broker.js";
import { byId, count, duration, setText as write } from "./dom.js";

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

const board = new Board(byId("view"), request, { again: () => poll() });
const setText = (id, text) => write(byId(id), text);

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
  byId("link").className = `pill ${{ live: "ok", down: "bad" }[state] ?? "calm"}`;
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
    show(await board.update());
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

function listenerText({ name, tls, certificate_expires_at: end }) {
  const days = Math.floor((end - Date.now() / 1000) / 86400);
  return !tls ? name : end === null || days >= 30 ? `${name} (TLS)` : `${name} (TLS, certificate ends in ${days} days)`;
}

function show(broker) {
  setText("listeners", `${broker.listeners.map(listenerText).join(", ")} · up ${duration(broker.uptime_seconds * 1000)}`);
  setText("version", `version ${broker.version}`);
  document.title = `${count(broker.clients.connected)} clients · umqtt broker`;
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  byId("token").value = "";
  setText("token-error", "");
  sessionStorage.setItem(KEY, token);
  poll();
});
byId("lock").addEventListener("click", () => lock(""));
document.addEventListener("visibilitychange", () => { if (!document.hidden && token) poll(); });
addEventListener("hashchange", () => {
  token = takeToken();
  if (token) poll();
});

if (token) poll();
else lock("");
