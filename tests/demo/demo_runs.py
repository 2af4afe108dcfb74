"""A whole demo run made up from a few figures: the load triples, new replicas come after one cold start, then go."""

from __future__ import annotations

import functools
import random

from e2e.demo.run import Facts, Run
from e2e.demo.scenario import Scenario
from e2e.demo.watch import ConditionSample, Decision, PodSample, PodState, Sample
from e2e.load.records import Record
from e2e.load.verdict import Objectives

START = 1_763_700_000.0
SCENARIO = Scenario()
OBJECTIVES = Objectives(ttft_seconds=1.0, tpot_seconds=0.05, share=0.95)
FACTS = Facts(
    "prod/chat", "Qwen/Qwen3-8B", ("l40s",), OBJECTIVES, SCENARIO, START, 36.0, "azure-conv-excerpt.csv"
)  # fmt: skip
DECISIONS = (
    Decision(START - 40, "FirstSize", "no load seen yet; 0 -> 1 replica, $1.95/h more", "Create"),
    Decision(START + 96, "ForecastAboveCapacity", "6.1 req/s expected (q=0.95); 1 -> 3 replicas", "ScaleUp"),
    Decision(START + 101, "ColdStart", "91.2% of 180 requests good, <objective> 95%", warning=True),
    Decision(START + 290, "DemandBelowCapacity", "2.3 req/s expected & held; 3 -> 1 replica", "ScaleDown"),
)


@functools.cache
def made_up_run(*, slow_until: float = 130.0, lost: int = 0, played_seconds: float | None = None) -> Run:
    """Build a run in which arrivals from the step until `slow_until` miss their objectives."""
    chooser = random.Random(3)
    played = SCENARIO.duration_seconds if played_seconds is None else played_seconds
    records: list[Record] = []
    at = 0.0
    while (at := at + chooser.expovariate(SCENARIO.load().rate_rps(at))) < played:
        slow = SCENARIO.step_start_seconds <= at < slow_until
        records.append(_record(len(records), START + at, 3.0 if slow else 0.3, lost=len(records) < lost))
    samples = [_sample(second) for second in range(-2, int(played))]
    decisions = [decision for decision in DECISIONS if decision.at <= START + played]
    return Run(FACTS, tuple(records), tuple(samples), tuple(decisions))


def _record(index: int, at: float, ttft: float, lost: bool) -> Record:
    tokens = 100
    first = at + ttft
    return Record(
        index=index,
        scheduled_at=at,
        sent_at=at + 0.001,
        first_token_at=first,
        finished_at=first + 0.03 * (tokens - 1),
        prompt_tokens=900,
        output_tokens_asked=tokens,
        output_tokens=7 if lost else tokens,
        status="truncated" if lost else "ok",
        http_status=200,
        error="ClientPayloadError <gone>" if lost else "",
        replica="chat-l40s-0",
    )


def _sample(second: int) -> Sample:
    pods = [PodSample("chat-l40s-0", "ready", START - 40, START - 4)]
    if 97 <= second < 303:
        state: PodState = "draining" if second >= 291 else "ready" if second >= 132 else "starting"
        ready_at = START + 132 if second >= 132 else None
        pods += [PodSample(f"chat-l40s-{k}", state, START + 97, ready_at) for k in (1, 2)]
    slo = ConditionSample("SLOMet", "True", "ObjectiveMet", "99.1% of 900 requests good")
    return Sample(START + second, tuple(pods), len(pods), "99.1%", (slo,))
