// Small helpers. Everything that comes from the broker reaches the page as text, never as markup.

export const byId = (id) => document.getElementById(id);

export function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

export function setText(target, text) {
  // Writing only what differs keeps selections alive and screen readers quiet.
  const node = typeof target === "string" ? byId(target) : target;
  if (node.textContent !== text) node.textContent = text;
}

export function count(number) {
  if (number < 100000) return Math.round(number).toLocaleString("en");
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(number);
}

export function rate(number) {
  return number > 0 && number < 10 ? number.toFixed(1) : count(number);
}

export function bytes(number) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (number >= 1000 && unit < units.length - 1) {
    number /= 1000;
    unit += 1;
  }
  return `${unit && number < 10 ? number.toFixed(1) : Math.round(number)} ${units[unit]}`;
}

export function duration(seconds) {
  const steps = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
  for (const [size, name, smaller, smallerName] of steps) {
    if (seconds >= size) {
      const rest = Math.floor((seconds % size) / smaller);
      return `${Math.floor(seconds / size)} ${name}${rest ? ` ${rest} ${smallerName}` : ""}`;
    }
  }
  return `${Math.floor(seconds)} s`;
}

// What a client is called on the page: its identifier, with what cannot be seen made visible.
export function visible(name) {
  return name.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (mark) => `\\u{${mark.codePointAt(0).toString(16)}}`);
}

let toastTimer = 0;

export function toast(text) {
  const node = byId("toast");
  node.textContent = text;
  node.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { node.hidden = true; }, 5000);
}

// Gives the answer to the question that is open, if one is.
let answer = () => {};

// A browser tells that a dialog was closed some time later: the next question may be open by then.
byId("confirm").addEventListener("close", ({ target }) => {
  if (!target.open) answer(target.returnValue === "yes");
});

// Ask before something that cannot be taken back. Resolves to true or false.
export function confirmed(title, text, action) {
  answer(false);
  const dialog = byId("confirm");
  setText("confirm-title", title);
  setText("confirm-text", text);
  setText("confirm-yes", action);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => { answer = resolve; });
}
