// Which view is shown, and its data: asked for every few seconds while somebody looks.
import { FleetView } from "./fleet.js";
import { ServiceView } from "./service.js";
import { clock, el, put, seconds } from "./text.js";

const PERIOD_MS = 5000;
const OLD_SECONDS = 30; // several ticks
const NAME = /^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$/;
const main = document.getElementById("main");
const trouble = document.getElementById("trouble");
const outages = document.getElementById("outages");
const age = document.getElementById("age");
const footer = document.getElementById("footer");
let view = null, source = "", tag = "", shown = null, timer = 0, asked = 0;

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean);
  const [namespace, name] = parts.every((part) => NAME.test(part)) ? parts : []; // ".." leads out of the page
  view?.end();
  main.replaceChildren();
  [tag, shown] = ["", null];
  view = name ? new ServiceView(main) : new FleetView(main);
  source = name ? `api/services/${namespace}/${name}` : "api/services";
  put(age, "");
  window.scrollTo(0, 0);
  ask();
}

async function ask() {
  clearTimeout(timer);
  const number = ++asked;
  try {
    const answer = await fetch(source, { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
    const data = answer.status === 304 ? shown : await answer.json();
    if (number !== asked) return;
    if (answer.ok || answer.status === 304) told(answer, data);
    else complain(data.message ?? `${answer.status} ${answer.statusText}`);
  } catch (error) {
    if (number === asked) complain(`The operator does not answer (${error.message}).`);
  }
  if (!document.hidden) timer = setTimeout(ask, PERIOD_MS);
}

function told(answer, data) {
  tag = answer.headers.get("ETag") ?? "";
  if (data !== shown) view.show(data);
  shown = data;
  const old = Date.parse(answer.headers.get("Date")) / 1000 - data.at;
  put(age, `tick of ${clock(data.at, true)}`);
  outages.replaceChildren(...data.outages.map(({ what, message, effect }) => {
    const line = el("p", "trouble");
    line.append(el("b", "", what), `. ${effect} ${message}`);
    return line;
  }));
  const recalled = data.history_since < data.leads_since ? ", those before from Prometheus" : "";
  put(footer, `Figures since ${clock(data.history_since)}. This operator leads since ${clock(data.leads_since, true)}${recalled}. `
    + "Gaps: nothing was known. Times are those of this browser.");
  trouble.hidden = !(old > OLD_SECONDS);
  if (old > OLD_SECONDS) put(trouble, `The last tick was ${seconds(old)} ago: what is shown may be true no more.`);
  if (document.documentElement.dataset.drawn !== source) performance.mark("drawn");
  document.documentElement.dataset.drawn = source;
}

function complain(words) {
  trouble.hidden = false;
  outages.replaceChildren();
  put(trouble, shown ? `${words} What is shown is of ${clock(shown.at, true)}.` : words);
}

window.addEventListener("hashchange", route);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", route);
document.addEventListener("visibilitychange", () => document.hidden || ask());
route();
