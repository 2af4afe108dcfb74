"""Numbers that pages and code both know are the same: each sentence is made from the code, and stands in its page."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from holdfast.domain import burn_rate
from holdfast.domain.cluster import MOST_ENDED
from holdfast.domain.snapshot import Timing
from holdfast.maths import normal_belief
from holdfast.maths.trend import SLOPE_CELLS
from holdfast.observe.series.queries import window
from holdfast.observe.signals import poll_scheduler
from holdfast.policy import capacity_request
from holdfast.policy.allocation import plan
from holdfast.policy.estimate import (
    arrivals,
    bursts,
    capacity_evidence,
    cold_start,
    demand,
    evidence_window,
    flapping,
    forecast,
    growth,
    headroom,
    kv_cache,
    questions,
    replica_capacity,
    slo_budget,
)
from holdfast.policy.health import backoff
from holdfast.policy.placement import choice
from holdfast.policy.settings import PolicySettings
from holdfast.policy.sizing import guards
from holdfast.policy.transition import queue_limit
from holdfast.runtime.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"
SETTINGS, POLICY = Settings(prometheus_url="http://prometheus"), PolicySettings()
TICK, SCRAPE = SETTINGS.tick_seconds, SETTINGS.scrape_seconds
INTERVAL = window(TICK, SCRAPE).interval_seconds
LEAD = cold_start.lead_seconds(cold_start.ColdStarts(), Timing(TICK, SCRAPE), INTERVAL, POLICY)
WORDS, ORDINALS, SHARES = {2: "two", 3: "three"}, {3: "third"}, {0.1: "tenth"}
SCRAPES = WORDS[round(INTERVAL / SCRAPE)]
EVIDENCE = capacity_evidence


def percent(share: float) -> str:
    return f"{100 * share:g} %"


ARCHITECTURE = (
    f"One loop ticks every {TICK:g} s over all services",
    f"Counters are read by `increase()` over {SCRAPES} scrapes",
    f"Above {poll_scheduler.MOST_ENGINES} engines, services are polled in turn",
    f"Engines are scraped every {ORDINALS[round(SCRAPE / TICK)]} tick",
    f"up to {poll_scheduler.MOST_PRESSING} engines",
)
GLOSSARY = (
    f"the increase of counters is read: {SCRAPES} scrapes",
    f"a cold start of {POLICY.cold_start_seconds:g} s",
    f"| evidence window | {evidence_window.LOOK_SECONDS:g} s of observations",
    f"over all services, every {TICK:g} s",
)
SIGNALS = (f"the increase of counters is read, {SCRAPES} scrapes",)
ARRIVALS = (
    f"cells of one interval each, for {bursts.KEPT_SECONDS:g} s",
    f"max(0, 1 - {SLOPE_CELLS} / t²)",
    f"p = min(0.16, {arrivals.FALSE_ALARMS_PER_DAY:g} / (6 x 86400 / s))",
    f"At {INTERVAL:g} s it is {arrivals.threshold(INTERVAL):.2f}.",
    f"p is replaced by its root: {arrivals.threshold(INTERVAL, corroborated=True):.2f} at {INTERVAL:g} s",
    f"the newest {', '.join(map(str, arrivals.CHANGE_CELLS[:-1]))} and {arrivals.CHANGE_CELLS[-1]} cells are tested",
    f"bounded at {arrivals.OUTLIER:g}² D, over {arrivals.REMEMBERED_CELLS} cells",
    f"| false alarms a day | {arrivals.FALSE_ALARMS_PER_DAY:g} |",
    f"memory | {arrivals.PRIOR_DISPERSION}, {arrivals.PRIOR_CELLS} cells; {arrivals.REMEMBERED_CELLS} cells |",
    f"an interval of {INTERVAL:g} s, eight days",
)
FORECAST = (
    f"p90 of the last {cold_start.REMEMBERED} cold starts",
    f"With the prior of {POLICY.cold_start_seconds:g} s, a tick of {TICK:g} s and a scrape of {SCRAPE:g} s: {LEAD:g} s",
    f"s = max(I, L / {1 / forecast.SMOOTHED_SHARE:g})",
    f"the newest {forecast.REMEMBERED}",
    f"max(0.5, 1 - {forecast.LEAST_ABOVE} / n)",
    f"a = lead times / (lead times + {forecast.PRIOR_WEIGHT:g})",
    f"Φ⁻¹({1 - forecast.RELAPSE:g}) σ",
    f"that differ by at most a {SHARES[bursts.REGULAR_SHARE]}",
    f"| cold start before one was seen | {POLICY.cold_start_seconds:g} s |",
    f"| weight of theory | {forecast.PRIOR_WEIGHT:g} lead times |",
    f"| chance that noise calls a removed replica back | {forecast.RELAPSE:g} |",
    f"least spread | {bursts.MOST_RISES}; if another rise reached half of it; {bursts.LEAST_SPREAD_SECONDS:g} s |",
)
BUDGET = (
    f"Verdicts are kept in {slo_budget.BUCKETS} buckets over W",
    f"{burn_rate.REACHABLE:g} / (1 - o)), in w and in w / {burn_rate.SHORTER:g}",
    f"| fast | {percent(burn_rate.FAST.budget_share)} | W / {burn_rate.FAST.divisor:g} |",
    f"| slow | {percent(burn_rate.SLOW.budget_share)} | W / {burn_rate.SLOW.divisor:g} |",
    f"{headroom.LOWEST:g}, {headroom.HIGHEST:g})",
    f"| first q | {headroom.FIRST:g} |",
    f"| bounds of q | {headroom.LOWEST:g}, {headroom.HIGHEST:g} |",
)
CAPACITY = (
    f"seconds of at least {EVIDENCE.LEAST_STEPS:g} steps (plugin) | {EVIDENCE.STEPS_DEVIATION:g} |",
    f"per second and replica | {EVIDENCE.TPOT_DEVIATION:g}, more if uneven |",
    f"saturated (fewer than {1 - EVIDENCE.BEHIND:g} of the arrivals begin, by more than {EVIDENCE.CHANCE:g} sqrt(",
    f"{EVIDENCE.SATURATED_SHARE:g} of the rate that begins | {EVIDENCE.SATURATED_DEVIATION:g} |",
    f"the objective was kept | {EVIDENCE.LOAD_DEVIATION:g} |",
    f"if in ({EVIDENCE.UNDER_LOAD:g}, 1) and bad > a + {EVIDENCE.CHANCE:g} sqrt(a)",
    f"| gain, tried | {percent(EVIDENCE.TRIED)}, if q is at {headroom.LOWEST:g}, load > {EVIDENCE.WELL_LOADED:g}",
    f"need an evidence window of {evidence_window.LOOK_SECONDS:g} s",
    f"A measurement beyond {normal_belief.REFUTED:g} deviations",
    f"start anew with a deviation of {normal_belief.WIDEST:g}",
    f"where it is {queue_limit.DIFFERS:g} times away from theirs",
    f"first adds a deviation of {normal_belief.DRIFT:g}",
    f"With a deviation above {replica_capacity.UNSURE:g} the size at most doubles",
    f"after {WORDS[growth.MOST_STEPS]} larger sizes without",
    f"better by {growth.BETTER:g}, the size returns",
    f"Another load (a factor of {growth.OTHER_LOAD:g})",
    f"| least requests; least steps | {evidence_window.LEAST_REQUESTS:g}; {EVIDENCE.LEAST_STEPS:g} |",
    f"| probing: load, step | {EVIDENCE.WELL_LOADED:g}, {percent(EVIDENCE.TRIED)} a minute |",
    f"new answers of the model a tick | {questions.QUESTIONS_PER_TICK}, and {questions.SEARCHES_PER_TICK} searches",
)
SIZE = (
    f"({kv_cache.LEVEL_SECONDS:g} s for the level, {kv_cache.TREND_SECONDS:g} s for the trend)",
    f"{percent(kv_cache.LEAST_LONGER)} and 1 / √running above the mean of the last {kv_cache.USUAL_SECONDS / 60:g} min",
    f"{kv_cache.GROWTH:g} times their growth",
    f"must fit into {kv_cache.FULL:g} of the cache",
    f"patience x (drain {POLICY.drain_seconds:g} s + L)",
    f"the last {demand.RETURN_CYCLES:g} x (drain + L)",
    f"level x L is at most {percent(guards.AFFORDABLE_SHARE)} of the requests that may still be bad",
    f"It doubles, up to {flapping.MOST_PATIENCE:g}, with each removal",
    f"grown by less than {percent(round(flapping.UNCHANGED - 1, 6))}",
    f"| unchanged load | a factor of at most {flapping.UNCHANGED:g} |",
    f"| highest patience | {flapping.MOST_PATIENCE:g} |",
    f"At most {MOST_ENDED} pods that never served may end within {backoff.FLOOD_SECONDS / 60:g} minutes",
)
CHOICE = (
    f"costs less than {choice.HYSTERESIS:g} of the one in use",
    f"| least saving | {percent(round(1 - choice.HYSTERESIS, 6))} |",
    f"`--node-provisioning-time` ({POLICY.provisioning_seconds / 60:g} min)",
    f"remembered for {POLICY.retry_seconds / 60:g} min, doubling up to {POLICY.longest_retry_seconds / 3600:g} h",
    f"a running one {capacity_request.STAYING:g} times that",
    f"| a running replica counts | {capacity_request.STAYING:g} times |",
    f"| exchanges tried | {plan.MOST_TRIALS} |",
)
LAW = SIGNALS + ARRIVALS + FORECAST + BUDGET + CAPACITY + SIZE + CHOICE
CLAIMS = [
    *(("architecture.md", claim) for claim in ARCHITECTURE),
    *(("glossary.md", claim) for claim in GLOSSARY),
    *(("designs/0017-control-law.md", claim) for claim in LAW),
]


@pytest.mark.parametrize(("page", "claim"), CLAIMS)
def test_a_page_says_the_number_of_the_code(page: str, claim: str) -> None:
    assert claim in _text(page)


@cache
def _text(page: str) -> str:
    return re.sub(r"\s+", " ", (DOCS / page).read_text())
