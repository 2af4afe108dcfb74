// One service: whether the objective holds, what happened over time, what was decided, and what else could have been.
import { DASHED, DOTTED, MIXED, Plot } from "./plots.js";
import { budget, clock, count, dollars, el, figure, lasting, NONE, others, put, seconds, share, WORDS } from "./text.js";

const LEAST_AXIS_SECONDS = 600;
const rate = (value) => figure(value, "/s");
const percent = (value) => `${+value.toFixed(3)} %`;
const whole = (value) => (Number.isInteger(value) ? String(value) : "");
const CAUSES = {
  exact: "Each bad request counts once, at what it missed first.",
  bounds: "Not every engine has the plugin at work: a request that missed two objectives counts at both. What a request "
    + "missed that its client gave up is not known.",
  null: "Not known now: no counts can be believed. The condition MetricsAvailable says why.",
};

export class ServiceView {
  constructor(main) {
    this.head = el("h1");
    this.about = el("p", "muted");
    this.verdict = el("div", "verdict");
    this.tiles = el("div", "tiles");
    this.grid = el("div", "plots");
    this.parts = el("div");
    main.append(this.head, this.about, this.verdict, this.tiles, this.grid, this.parts);
    this.plots = [];
    this.marks = [];
  }

  show(data) {
    put(this.head, `${data.namespace}/${data.name}`);
    put(this.about, `${data.model} · ${share(data.objective)} of requests within ${bounds(data.slo)}, over ${seconds(data.window_seconds)}`);
    document.title = `${WORDS[data.state]}: ${data.namespace}/${data.name}`;
    this.verdict.replaceChildren(...verdict(data));
    this.tiles.replaceChildren(...tiles(data));
    this.marks = data.changes.map((change) => change.at);
    this.build(data);
    this.draw(data);
    this.parts.replaceChildren(...pools(data), ...classes(data), ...batch(data), ...decisions(data), ...whatIf(data),
      ...savings(data.used),
      ...inputs(data.decision, "The newest decision"),
      ...(data.recommendation ? inputs(data.recommendation, "Recommended") : []), ...conditions(data));
  }

  build(data) {
    const { ttft_seconds, tpot_seconds, e2e_seconds } = data.slo;
    const shape = [ttft_seconds, tpot_seconds, e2e_seconds, data.objective, data.window_seconds].join();
    if (shape === this.shape) return;
    this.end();
    this.grid.replaceChildren();
    this.shape = shape;
    const latency = (name, bound, objective) => ({
      title: name, format: (value) => seconds(value), high: bound,
      lines: [
        { label: "p50", stroke: "coming" }, { label: "p95", stroke: "warn", dash: MIXED },
        { label: "p99", stroke: "ink", width: 2 }, { label: "objective", stroke: "missed", dash: DASHED },
      ],
      rows: (s) => [s[`${objective}_p50_seconds`], s[`${objective}_p95_seconds`], s[`${objective}_p99_seconds`], level(s, bound)],
    });
    const endToEnd = e2e_seconds != null;
    const plots = [
      { title: "Requests", format: rate,
        lines: [
          { label: "arriving", stroke: "ink" }, { label: "good", stroke: "good", filled: "22" },
          { label: "bad", stroke: "missed", width: 2.5, filled: "55" }, { label: "forecast", stroke: "muted", dash: DASHED },
          { label: "Ready replicas carry", stroke: "warn", dash: DOTTED, width: 2 },
        ],
        rows: (s) => [s.arrival_rps, s.good_rps, minus(s.arrival_rps, s.good_rps), s.forecast_rps, s.capacity_rps] },
      { title: "Replicas", format: whole, high: 1,
        lines: [
          { label: "wanted", stroke: "ink", dash: DASHED, stepped: true },
          { label: "Ready", stroke: "good", width: 2.5, filled: "22", stepped: true },
          { label: "starting", stroke: "coming", filled: "44", stepped: true },
          { label: "draining", stroke: "muted", dash: DOTTED, width: 2, stepped: true },
        ],
        rows: (s) => [s.desired_replicas, s.ready_replicas, s.starting_replicas, s.draining_replicas] },
      latency("Time to first token", ttft_seconds, "ttft"),
      latency("Time per output token", tpot_seconds, "tpot"),
      ...(endToEnd ? [latency("End to end", e2e_seconds, "e2e")] : []),
      { title: "Bad requests by cause", format: rate, note: (told) => CAUSES[told.bad_source],
        lines: [
          { label: "TTFT", stroke: "missed" }, { label: "TPOT", stroke: "warn", dash: MIXED },
          ...(endToEnd ? [{ label: "E2E", stroke: "coming", dash: DASHED }] : []),
          { label: "turned away", stroke: "ink", dash: DOTTED, width: 2 }, { label: "failed", stroke: "muted", width: 2.5 },
        ],
        rows: (s) => [s.bad_ttft_rps, s.bad_tpot_rps, ...(endToEnd ? [s.bad_e2e_rps] : []), s.bad_rejected_rps, s.bad_error_rps] },
      { title: `Good requests over ${seconds(data.window_seconds)}`, format: percent, low: 100 - 400 * (1 - data.objective), high: 100,
        lines: [{ label: "good", stroke: "ink", width: 2 }, { label: "objective", stroke: "missed", dash: DASHED }],
        rows: (s) => [s.missed_share.map((value) => (value == null ? null : 100 * (1 - value))), level(s, 100 * data.objective)] },
      { title: "Error budget left", format: percent, high: 100,
        lines: [{ label: "left", stroke: "ink", width: 2 }, { label: "all spent", stroke: "missed", dash: DASHED }],
        rows: (s) => [s.budget_remaining.map((value) => (value == null ? null : 100 * value)), level(s, 0)] },
    ];
    this.plots = plots.map(({ title, rows, note = () => "", ...options }) => {
      const host = el("section"), words = el("p", "muted");
      host.append(el("h2", "", title));
      this.grid.append(host);
      const plot = new Plot(host, { ...options, marks: () => this.marks });
      host.append(words);
      return { rows, note, words, plot };
    });
  }

  draw(data) {
    const { series, at, history_since } = data;
    const from = Math.max(series.times[0], Math.min(history_since, at - LEAST_AXIS_SECONDS));
    for (const { rows, note, words, plot } of this.plots) {
      put(words, note(data));
      plot.show([series.times, ...rows(series)], from, at);
    }
  }

  end() {
    for (const { plot } of this.plots) plot.end();
  }
}

const bounds = (slo) =>
  [["TTFT", slo.ttft_seconds], ["TPOT", slo.tpot_seconds], ["E2E", slo.e2e_seconds]]
    .filter(([, bound]) => bound != null).map(([name, bound]) => `${name} ${seconds(bound)}`).join(" and ");
const atOnce = ({ p50, p90, p99 }) => ([p50, p90, p99].some((value) => value != null) ? [p50, p90, p99].map((value) => figure(value)).join(", ") : NONE);
const level = (series, value) => series.times.map(() => value);
const minus = (all, some) => all.map((value, index) => (value == null || some[index] == null ? null : Math.max(0, value - some[index])));

// What a person should read first: the worst condition, that of the objective, the other ones that are wrong, and what
// is done about it.
function verdict(data) {
  const shown = data.conditions.filter((each, place) => !place || each.wrong || each.type === "SLOMet");
  const decision = el("p");
  decision.append("Newest decision ", el("b", "", `${data.action}, ${data.action_reason}`), `: ${data.action_message}`);
  return [el("p", `state ${data.state}`, WORDS[data.state]), ...shown.map((each) => told(each, data.at)), decision];
}

function told(condition, at) {
  const line = el("p");
  const about = `${condition.type} is ${condition.status} ${lasting(condition.since, at)}`;
  line.append(el("b", "", condition.reason), `: ${condition.message} `, el("span", "muted", `(${about})`));
  return line;
}

function tiles(data) {
  return [
    ["good requests", share(data.attainment)],
    ["budget left", budget(data.budget_remaining)],
    ["arriving", figure(data.arrival_rps, " req/s")],
    ["good", figure(data.good_rps, " req/s")],
    ["at once in engines: p50, p90, p99 of ten minutes", atOnce(data.concurrency)],
    [["replicas Ready", others(data)].filter(Boolean).join(", "), `${count(data.ready_replicas)} of ${count(data.desired_replicas)}`],
    ["least to most", data.limits.pinned == null ? `${data.limits.min} to ${data.limits.max}` : `pinned to ${data.limits.pinned}`],
    ["cost", dollars(data.dollars_per_hour)],
  ].map(([label, value]) => {
    const tile = el("div", "", label);
    tile.prepend(el("b", "", value));
    return tile;
  });
}

function table(heads, rows) {
  const whole = el("table"), head = el("thead"), line = el("tr"), body = el("tbody");
  line.append(...heads.map((text) => el("th", "", text)));
  head.append(line);
  body.append(...rows.map((cells) => {
    const row = el("tr");
    row.append(...cells.map((text, index) => {
      const cell = el("td", text.length > 30 ? "wide" : "", text);
      if (index) cell.dataset.label = heads[index];
      return cell;
    }));
    return row;
  }));
  whole.append(head, body);
  return whole;
}

function pools(data) {
  const rows = data.pools.map((each) => [each.name, each.role, String(each.ready ?? 0), String(each.desired ?? 0)]);
  return rows.length ? [el("h2", "", "Pools"), table(["pool", "role", "ready", "desired"], rows)] : [];
}

function classes(data) {
  const rows = data.classes.map((each) => [each.name || "none", share(each.attainment), share(each.objective),
    share(each.budget_remaining), String(Math.round(each.judged))]);
  const head = ["class", "good requests", "objective", "budget left", "judged"];
  return rows.length ? [el("h2", "", "Classes over slo.window"), table(head, rows)] : [];
}

function batch(data) {
  const rows = data.batch.map((each) => [each.name, each.unfinished === null ? "unknown" : String(Math.ceil(each.unfinished)),
    (60 * each.done_rps).toPrecision(2), each.finish_seconds === null ? "no time set" : seconds(each.finish_seconds)]);
  const head = ["class", "unfinished requests", "done per minute", "to be done within"];
  return rows.length ? [el("h2", "", "Batch work"), table(head, rows)] : [];
}

function decisions(data) {
  const rows = data.changes.toReversed().map((change) =>
    [clock(change.at, true), change.action, change.reason, String(change.replicas), change.message]);
  const none = el("p", "muted", "Nothing was changed since the history on this page began; earlier changes stand in Events: kubectl describe llms.");
  return [el("h2", "", "Changes"), rows.length ? table(["at", "what", "why", "replicas", "in words"], rows) : none];
}

function whatIf(data) {
  const rows = data.what_if.map((size) => [
    `${size.replicas}${size.decided ? ", as decided" : ""}${size.wanted && !size.decided ? ", wanted before guards" : ""}`,
    figure(size.carries_rps, " req/s"),
    size.load_share == null ? NONE : `${Math.round(100 * size.load_share)} %`,
    size.load_share == null ? "nothing would serve" : size.load_share <= 1 ? "the forecast fits" : "less than the forecast",
    dollars(size.dollars_per_hour),
  ]);
  const about = el("p", "muted", `At the forecast of ${figure(data.forecast_rps, " req/s")}, by what a replica is believed to carry within the objectives.`);
  return rows.length ? [el("h2", "", "What if it were another size"), about, table(["replicas", "carry", "load", "", "cost"], rows)] : [];
}

function savings(used) {
  const spent = used.dollars == null ? "" : `, $${used.dollars.toFixed(2)}`;
  const sum = `In the ${figure(used.hours, " h")} known here: ${figure(used.ready_replica_hours, " h")} of Ready replicas${spent}.`;
  const about = el("p", "muted", "The twin plays a recorded day for minutes, so no page waits for what Holdfast would have used. Ask for it: ");
  about.append(el("code", "", used.savings_command));
  return used.hours ? [el("h2", "", "Used, and saved"), el("p", "", sum), about] : [];
}

function inputs(decision, title) {
  const found = decision.inputs ?? {};
  const parts = [el("h2", "", title), el("p", "", `${decision.action}, ${decision.reason}: ${decision.message}`)];
  const facts = Object.entries(found).map(([name, value]) => `${name} ${value}`).join(" · ");
  if (facts) parts.push(el("p", "muted", facts));
  const rows = (decision.candidates ?? []).map((each) => [
    each.accelerator, String(each.replicas ?? 0), figure(each.perReplicaRps, " req/s"), dollars(each.costPerHour), each.lostBecause ?? "taken",
  ]);
  if (rows.length) parts.push(table(["accelerator", "replicas", "each carries", "cost", "outcome"], rows));
  for (const guard of decision.guards ?? []) parts.push(el("p", "", `Guard: ${guard}`));
  return parts;
}

function conditions(data) {
  const rows = data.conditions.map((each) =>
    [each.type, each.status, lasting(each.since, data.at), each.reason, each.message]);
  return [el("h2", "", "Conditions"), table(["condition", "is", "how long", "why", "in words"], rows)];
}
