// What operators do: an order is shown with what will happen and its command before it is given; the log of all of them.
import { Table, local } from "./table.js";
import { dialog, make, pill, setText, since, toast, visible } from "./dom.js";

const STATES = { running: "likely", done: "ok", failed: "failed", stopped: "absent", interrupted: "lost" };
const COMMANDS = {
  ping: "Who are you?", get: "Read a setting", set: "Change a setting", log: "Newest log lines", crash: "Last traceback", outbox: "What waits",
  read: "Read a file", reboot: "Restart", pause: "Pause readings", resume: "Resume readings", output: "Switch an output",
};
const ARGUMENTS = { get: ["key, empty for all"], set: ["key", "value as JSON"], read: ["path", "offset"], output: ["name", "value", "seconds"] };

// Show what an act would do and its command; run it if that is confirmed. Resolves to the act, or null.
export async function order(app, kind, args) {
  let plan;
  try {
    plan = await app.api("acts/plan", {}, { kind, args });
  } catch (error) {
    toast(error.message);
    return null;
  }
  const content = make("div", { class: "stack" }, make("p", {}, visible(plan.text)), make("div", {}, make("p", { class: "quiet" }, "The same on the command line:"), make("pre", {}, visible(plan.command))),
    ...plan.file ? [make("div", {}, make("p", { class: "quiet" }, "FILE:"), make("pre", {}, plan.file))] : []);
  const danger = kind !== "command" || ["reboot", "set", "pause", "output"].includes(args.command);
  const answer = await dialog("Do this?", content, make("button", { class: "button", value: "" }, "Cancel"), make("button", { class: `button ${danger ? "stop" : "primary"}`, value: "yes", disabled: !app.may(plan.role) }, app.may(plan.role) ? "Do it" : `needs the role ${plan.role}`));
  if (answer !== "yes") return null;
  try {
    return await app.api("acts", {}, { kind, args });
  } catch (error) {
    toast(error.message);
    return null;
  }
}

// One act with its output, kept up to date by update(act).
export function actCard(app, act) {
  const state = make("span");
  const lines = make("pre", { class: "lines", role: "log", tabindex: "0", "aria-label": "Output" });
  const stop = make("button", { type: "button", class: "button", onclick: () => app.api("acts/stop", {}, { id: act.id }).catch((error) => toast(error.message)) }, "Stop");
  const node = make("section", { class: "card stack", "aria-label": "Act" }, make("div", { class: "head" }, make("b", {}, visible(act.text)), make("div", { class: "row" }, state, stop)), make("code", { class: "quiet" }, visible(act.command)), lines);
  function update(now) {
    state.replaceChildren(pill(STATES[now.state] ?? "unknown", now.exit_code ? `${now.state}, code ${now.exit_code}` : now.state));
    setText(lines, now.lines.map(visible).join("\n") || "…");
    stop.hidden = now.state !== "running" || !app.may("operate");
    lines.scrollTop = lines.scrollHeight;
  }
  update(act);
  return { node, update, id: act.id };
}

// The buttons of a device's page.
export function deviceActs(host, id, app, shown) {
  if (!app.me.parts.broker || !app.may("operate") || host.childElementCount) return;
  const begin = async (kind, args) => {
    const act = await order(app, kind, args);
    if (act) shown(act);
  };
  const command = make("select", { "aria-label": "Command" }, ...Object.entries(COMMANDS).map(([name, title]) => make("option", { value: name }, `${title} (${name})`)));
  const inputs = make("span", { class: "row" });
  const draw = () => inputs.replaceChildren(...(ARGUMENTS[command.value] ?? []).map((hint) => make("input", { placeholder: hint, "aria-label": hint, size: 12, spellcheck: "false" })));
  command.addEventListener("change", draw);
  const send = (event) => {
    event.preventDefault();
    const values = [...inputs.children].map((input) => input.value.trim());
    while (values.length && values.at(-1) === "") values.pop();
    begin("command", { device: id, command: command.value, arguments: values });
  };
  const more = [["update", "Update the firmware"], ["rollback", "Back to the version before"], ["rotate", "Rotate its key"]];
  host.append(make("form", { class: "row", onsubmit: send }, command, inputs, make("button", { class: "button" }, "Send")),
    ...app.may("admin") ? [make("details", { class: "menu" }, make("summary", { class: "button" }, "More"),
      make("div", {}, ...more.map(([kind, title]) => make("button", { type: "button", class: "button", onclick: () => begin(kind, { device: id }) }, title))))] : []);
}

export async function actsView(host, parameters, app) {
  const cards = make("div", { class: "stack" });
  const log = make("section", { class: "card", "aria-label": "Log" });
  const shown = new Map();
  const show = (act) => {
    if (!shown.has(act.id)) {
      const card = actCard(app, act);
      shown.set(act.id, card);
      cards.prepend(card.node);
    }
  };
  const begin = async (kind, args) => {
    const act = await order(app, kind, args);
    if (act) show(act);
  };

  const devices = make("input", { placeholder: "pump-*, lamp-1", spellcheck: "false", required: true });
  const key = make("input", { placeholder: "interval_ms", spellcheck: "false", required: true });
  const value = make("input", { placeholder: "10000", spellcheck: "false", required: true });
  const settings = make("form", { class: "card stack", onsubmit: (event) => {
    event.preventDefault();
    begin("settings", { devices: devices.value.split(",").map((one) => one.trim()).filter(Boolean), settings: { [key.value.trim()]: json(value.value) } });
  } }, make("h2", {}, "Settings of a group"), make("p", { class: "quiet" }, "The broker keeps what is desired; each device takes it now, or when it is back."),
  make("div", { class: "row" }, make("label", { class: "field" }, "Devices and patterns", devices), make("label", { class: "field" }, "Setting", key), make("label", { class: "field" }, "Value", value)),
  make("div", {}, make("button", { class: "button primary" }, "Plan it")));

  const fleet = make("input", { placeholder: "pump-*", spellcheck: "false", required: true });
  const stages = make("input", { value: "1,10%,100%", spellcheck: "false" });
  const wait = make("input", { value: "10m", size: 6, spellcheck: "false" });
  const update = make("form", { class: "card stack", onsubmit: (event) => { event.preventDefault(); begin("update", { fleet: fleet.value.trim(), stages: stages.value.trim(), wait_healthy: wait.value.trim() }); } },
    make("h2", {}, "Staged update"), make("p", { class: "quiet" }, "The firmware of this installation, stage by stage; a device that fails ends it, and goes back by itself."),
    make("div", { class: "row" }, make("label", { class: "field" }, "Pattern of devices", fleet), make("label", { class: "field" }, "Stages", stages), make("label", { class: "field" }, "Watch each for", wait)),
    make("div", {}, make("button", { class: "button primary" }, "Plan it")));

  async function draw() {
    const { acts } = await app.api("acts");
    for (const act of acts.filter((one) => one.state === "running").reverse()) show(act);
    const table = new Table({ label: "Acts", first: 20, empty: "Nobody has done anything yet.", source: local(acts), columns: [
      { key: "at", title: "When", write: (ms) => since(ms) }, { key: "who", title: "Who" }, { key: "state", title: "State", write: (state) => pill(STATES[state] ?? "unknown", state) },
      { key: "text", title: "What" }, { key: "command", title: "Command", write: (text) => make("code", { title: text }, visible(text)) },
    ] });
    log.replaceChildren(make("div", { class: "head" }, make("h2", {}, "Log"), make("p", { class: "quiet" }, "who did what, and when")), table.node);
  }
  host.append(make("div", { class: "top" }, make("h1", {}, "Act")), cards);
  if (!app.may("operate")) host.append(make("p", { class: "quiet" }, `The role ${app.me.role} sees what was done; operate may do more.`));
  else if (!app.me.parts.broker) host.append(make("p", { class: "banner warn" }, "No broker is given: start the console with --broker."));
  else host.append(make("div", { class: "pair" }, settings, ...app.may("admin") ? [update] : []));
  host.append(log);
  await draw();
  return { act: (act) => { shown.get(act.id)?.update(act); if (act.state !== "running" || !shown.has(act.id)) draw().catch(() => {}); } };
}

function json(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
