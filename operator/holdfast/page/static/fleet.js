// All services, the worst first.
import { Spark } from "./plots.js";
import { budget, count, dollars, el, figure, lasting, others, put, putBoth, share, WORDS } from "./text.js";

const HEADS = [
  ["Service"], ["State"], ["Reason"], ["Good", "number"], ["Last 2 h"], ["Budget left", "number"], ["Arriving", "number"],
  ["Replicas"], ["Cost", "number"], ["Decision"],
];
const STATES = ["unready", "missed", "unknown", "invalid", "held"];

export class FleetView {
  constructor(main) {
    this.rows = new Map();
    this.counts = el("div", "counts");
    this.numbers = Object.fromEntries(STATES.map((state) => [state, this.counter(state)]));
    this.filter = Object.assign(el("input"), { type: "search", placeholder: "name, model, reason" });
    this.filter.setAttribute("aria-label", "Show services with");
    this.filter.addEventListener("input", () => this.sift());
    this.counts.append(this.filter);
    const table = el("table", "fleet");
    const heads = el("tr");
    heads.append(...HEADS.map(([head, kind]) => el("th", kind, head)));
    table.append(el("thead"), (this.body = el("tbody")));
    table.firstChild.append(heads);
    this.none = el("p", "muted");
    main.replaceChildren(this.counts, table, this.none);
    // Sparklines are drawn once they come into sight: five hundred at once would keep the page from opening.
    this.sight = new IntersectionObserver((seen) => {
      for (const { target, isIntersecting } of seen) if (isIntersecting) this.rows.get(target.dataset.key)?.draw();
    }, { rootMargin: "200px" });
  }

  counter(state) {
    const whole = el("span", state), number = el("b", "", "0");
    whole.append(number, WORDS[state]);
    this.counts.append(whole);
    return number;
  }

  show(data) {
    this.data = data;
    for (const state of STATES) {
      put(this.numbers[state], String(data.counts[state]));
      this.numbers[state].parentNode.className = data.counts[state] ? state : "none";
    }
    const wrong = data.counts.unready + data.counts.missed + data.counts.invalid;
    document.title = wrong ? `(${wrong}) Holdfast` : "Holdfast";
    const gone = new Set(this.rows.keys());
    const wanted = data.services.map((service) => {
      const key = `${service.namespace}/${service.name}`;
      gone.delete(key);
      if (!this.rows.has(key)) this.add(key, service);
      const row = this.rows.get(key);
      row.show(service, data);
      return row.tr;
    });
    for (const key of gone) this.drop(key);
    if (wanted.some((tr, index) => this.body.children[index] !== tr)) this.body.append(...wanted);
    put(this.none, data.services.length ? "" : "There is no LLMService yet.");
    this.sift();
  }

  add(key, service) {
    const row = new Row(key, service);
    this.rows.set(key, row);
    this.sight.observe(row.spot);
  }

  drop(key) {
    const row = this.rows.get(key);
    this.sight.unobserve(row.spot);
    row.end();
    this.rows.delete(key);
  }

  sift() {
    const wanted = this.filter.value.trim().toLowerCase();
    for (const row of this.rows.values()) row.tr.hidden = !row.words.includes(wanted);
  }

  end() {
    this.sight.disconnect();
    for (const row of this.rows.values()) row.end();
  }
}

class Row {
  constructor(key, service) {
    this.tr = el("tr");
    const link = el("a", "", key);
    link.href = `#/${encodeURIComponent(service.namespace)}/${encodeURIComponent(service.name)}`;
    this.model = el("span", "sub");
    this.cell("wide").append(link, this.model);
    this.state = this.cell("state");
    this.reason = this.cell("wide reason");
    this.attainment = this.cell("number", "good");
    this.spot = el("div", "spark");
    this.spot.dataset.key = key;
    this.cell("").append(this.spot);
    this.budget = this.cell("number", "budget");
    this.arriving = this.cell("number", "arriving");
    this.replicas = this.cell("", "replicas");
    this.cost = this.cell("number");
    this.decision = this.cell("", "decision");
  }

  cell(className, label = "") {
    const td = el("td", className);
    if (label) td.dataset.label = label;
    this.tr.append(td);
    return td;
  }

  show(service, data) {
    this.service = service;
    this.data = data;
    this.words = [service.namespace, "/", service.name, " ", service.model ?? "", " ", service.reason, " ", WORDS[service.state],
      " ", service.action_reason ?? ""].join("").toLowerCase();
    put(this.model, service.model ?? "");
    putBoth(this.state, WORDS[service.state], service.wrong ? lasting(service.since, data.at) : "");
    this.state.className = `state ${service.state}`;
    this.tr.title = service.message;
    putBoth(this.reason, service.reason, service.wrong ? service.message : "");
    putBoth(this.attainment, share(service.attainment), service.objective ? `of ${share(service.objective)}` : "");
    put(this.budget, budget(service.budget_remaining));
    put(this.arriving, figure(service.arrival_rps, " req/s"));
    putBoth(this.replicas, `${count(service.ready_replicas)} of ${count(service.desired_replicas)} Ready`, others(service));
    put(this.cost, dollars(service.dollars_per_hour));
    putBoth(this.decision, service.action ?? "", service.action_reason ?? "");
    if (this.spark && service.spark) this.spark.show(service, data);
  }

  draw() {
    if (!this.spark && this.service.spark) this.spark = new Spark(this.spot, this.service, this.data);
  }

  end() {
    this.spark?.end();
    this.tr.remove();
  }
}
