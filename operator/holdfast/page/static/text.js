// Elements and words. Whatever the operator tells is text: it becomes a text node, never markup.

export function el(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A line, and a paler one below it.
export function putBoth(element, text, below) {
  if (element.childNodes.length !== 2) element.replaceChildren(el("span"), el("span", "sub"));
  put(element.firstChild, text);
  put(element.lastChild, below);
}

const known = (value) => typeof value === "number" && Number.isFinite(value);
export const NONE = "–";

export const figure = (value, unit = "") => (known(value) ? `${+value.toPrecision(3)}${unit}` : NONE);
export const count = (value) => (known(value) ? String(Math.round(value)) : NONE);
export const dollars = (value) => (known(value) ? `$${value.toFixed(2)}/h` : NONE);
export const budget = (value) => (known(value) ? `${Math.max(-999, Math.round(100 * value))} %` : NONE);

// Two significant digits of what is missing, as in kubectl: 0.9987 is 99.87 %.
export function share(value) {
  if (!known(value)) return NONE;
  const missing = +(100 * (1 - value)).toPrecision(2);
  return `${+(100 - missing).toFixed(6)} %`;
}

export function seconds(value) {
  if (!known(value)) return NONE;
  if (value < 1) return `${+(1000 * value).toPrecision(3)} ms`;
  if (value < 120) return `${+value.toPrecision(3)} s`;
  return value < 7200 ? `${+(value / 60).toPrecision(3)} min` : `${+(value / 3600).toPrecision(3)} h`;
}

export const clock = (at, withSeconds = false) =>
  new Date(1000 * at).toLocaleTimeString([], {
    hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(withSeconds ? { second: "2-digit" } : {}),
  });

// For how long a condition has had its status: "for 19 min".
export function lasting(since, at) {
  const passed = at - Date.parse(since) / 1000;
  if (!(passed >= 0)) return "";
  const [size, unit] = [[86400, "days"], [3600, "h"], [60, "min"]].find(([each]) => passed >= 2 * each) ?? [1, "s"];
  return `for ${Math.floor(passed / size)} ${unit}`;
}

// Replicas that are not Ready, in words: "1 starting, 2 without a node".
export const others = (row) =>
  Object.entries(row.others ?? {}).map(([what, number]) => `${number} ${what}`).join(", ");

export const WORDS = { unready: "not ready", missed: "missed", unknown: "unknown", invalid: "invalid", held: "held" };
