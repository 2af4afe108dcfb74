"""Series that judge requests are missing: nobody knows the share of good requests, and nothing is lowered."""

from __future__ import annotations

from dataclasses import replace

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Decision
from holdfast.domain.signals import SignalState, Traffic
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from tests.builders import NOW, ServiceView, a_snapshot, condition, node, replicas, service, sizes, traffic
from tests.policy.fluid import FixedRates

CHAT = service().with_objective(0.99)
NAMES = "Prometheus scrapes the engines but has no vllm:time_to_first_token_seconds_count"


def without_histograms(seen: Traffic) -> Traffic:
    """What is counted where Prometheus converts classic histograms, and how that is told."""
    ((name, counts),) = seen.by_accelerator
    blind = replace(
        counts, ttft_count=0.0, ttft_within=0.0, tpot_count=0.0, tpot_within=0.0, tpot_typical_seconds=0.0,
        length_samples=0.0, prompt_length_sum=0.0, output_length_sum=0.0,
    )  # fmt: skip
    return replace(seen, state=SignalState.INCOMPLETE, detail=NAMES, by_accelerator=((name, blind),))


def decided(seen: Traffic, ready: int = 2) -> tuple[Decision, set[int]]:
    """The last decision after ten minutes, and all sizes that were decided."""
    memory, found = Memory(), set[int]()
    for tick in range(120):
        view = ServiceView(CHAT, seen, replicas(ready), born_at=NOW - 9000.0)
        snapshot = a_snapshot(view, now=NOW + 5.0 * tick, nodes=(node("n", 8, used=ready),))
        (decision,), memory = decide(snapshot, memory, model=FixedRates({"h100": 8.9}))
        found |= set(sizes(decision).values())
    return decision, found


def test_the_objective_is_unknown_and_the_missing_series_are_named() -> None:
    decision, _ = decided(without_histograms(traffic(30.0)))
    assert condition(decision, "SLOMet") == (None, Reason.METRICS_PARTIAL)
    assert condition(decision, "MetricsAvailable") == (False, Reason.METRICS_PARTIAL)
    told = {each.type: each.message for each in decision.conditions}
    assert told["SLOMet"] == told["MetricsAvailable"] == NAMES


def test_nothing_is_lowered() -> None:
    _, found = decided(without_histograms(traffic(1.0)), ready=6)
    assert min(found) >= 6


def test_no_request_is_judged() -> None:
    decision, _ = decided(without_histograms(traffic(30.0)))
    assert decision.slo.attainment is None
