"""When numbers have moved, and that random arrivals at a constant rate do not move them."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.act.deadband import same
from holdfast.act.status import least_age_seconds
from holdfast.api.status import BatchingStatus
from holdfast.control.status.report import status_of
from holdfast.domain.engine import EngineFacts
from holdfast.domain.signals import LatencyQuantiles
from holdfast.domain.snapshot import Snapshot, Timing
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from tests.builders import NOW, ServiceView, replicas, service, traffic
from tests.control.parts import llmservice, parts


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (4.2, 4.3, True),
        (4.2, 4.7, False),
        (2, 2.1, True),  # the API server keeps 2.0 as 2
        (0.0, 0.1, False),
        (3, 4, False),
        (True, False, False),
        ("99.87%", "99.86%", True),
        ("99.87%", "99.6%", False),
        ("99.99%", "99%", False),
        ("43%", "41%", True),
        ("95%", "91%", False),
        ("100%", "99.9%", False),
        ("410ms", "430ms", True),
        ("980ms", "1s", True),
        ("980ms", "1.1s", False),
        ("980ms", "980s", False),
        ("12.3 req/s expected, 4 replicas", "12.5 req/s expected, 4 replicas", True),
        ("12.3 req/s expected, 20 replicas", "12.3 req/s expected, 21 replicas", False),
        ("12.3 req/s expected", "12.3 req/s arrive", False),
        ("2026-11-21T10:00:00Z", "2026-11-21T10:00:01Z", False),
        ({"a": 1.0}, {"a": 1.0, "b": 1.0}, False),
        ([1.0], [1.0, 1.0], False),
        ([{"a": 1.0}], [{"a": 1.05}], True),
        (None, 1.0, False),
        ("", None, False),
    ],
)
def test_same(old: Any, new: Any, expected: bool) -> None:
    assert same(old, new) is expected
    assert same(new, old) is expected


LEAVES = st.none() | st.booleans() | st.floats() | st.integers() | st.text()


@pytest.mark.slow
@given(LEAVES, LEAVES)
def test_any_two_values_can_be_compared_either_way(one: Any, other: Any) -> None:
    assert same({"a": [one]}, {"a": [other]}) is same(other, one)


def statuses(rate: float, minutes: float, seed: int, step: float = 1.0) -> list[dict[str, Any]]:
    """What the status of one service would say in every tick; arrivals are random, their rate steps in the middle."""
    chance, memory, told = random.Random(seed), Memory(), []
    part = dataclasses.replace(parts(llmservice(), sizes={"h100": 4}), spec=service().with_replicas_between(4, 8).spec)
    part = dataclasses.replace(part, replicas=replicas(4))
    scrapes: list[int] = []
    old: dict[str, Any] = {}
    for tick in range(int(minutes * 12)):
        if tick % 3 == 0:
            now_rate = rate * (step if tick > minutes * 6 else 1.0)
            scrapes.append(_poisson(chance, 15 * now_rate))
        counted = sum(scrapes[-3:]) / (15.0 * len(scrapes[-3:]))
        seen = dataclasses.replace(traffic(counted, seconds=45.0), ttft=LatencyQuantiles(0.2, 0.3, 0.35))
        view = ServiceView(service().with_replicas_between(4, 8), seen, replicas(4)).snapshot()
        now = NOW + 5.0 * tick
        (decision,), memory = decide(Snapshot(now, (view,), (), Timing(5.0, 15.0)), memory)
        old = status_of(part, decision, BatchingStatus(), old, now)
        told.append(old)
    return told


def _poisson(chance: random.Random, mean: float) -> int:
    passed, count = chance.expovariate(1.0), 0
    while passed < mean:
        passed, count = passed + chance.expovariate(1.0), count + 1
    return count


def written(told: list[dict[str, Any]]) -> list[int]:
    """In which ticks the status is written, when numbers wait a minute."""
    last, at, ticks = told[0], 0, []
    for tick, new in enumerate(told):
        if 5.0 * (tick - at) >= least_age_seconds(last, new):
            last, at = new, tick
            ticks.append(tick)
    return ticks


def test_acceptance_of_drafts_that_varies_causes_no_writes() -> None:
    """Among few requests it moves by a tenth, and at night nothing is drafted."""
    chance, memory, told = random.Random(1), Memory(), []
    part = dataclasses.replace(parts(llmservice(), sizes={"h100": 4}), replicas=replicas(4))
    for tick in range(12 * 30):
        accepted = None if tick % 60 > 40 else 1.0 + chance.uniform(-0.05, 0.05)
        seen = dataclasses.replace(traffic(10.0), facts=(("h100", EngineFacts(accepted_drafts=accepted)),))
        now = NOW + 5.0 * tick
        view = ServiceView(service().with_replicas_between(4, 8), seen, replicas(4)).snapshot()
        (decision,), memory = decide(Snapshot(now, (view,), (), Timing(5.0, 15.0)), memory)
        told.append(status_of(part, decision, BatchingStatus(), told[-1] if told else {}, now))
    shown = {status["placements"][0]["engine"]["acceptedDraftTokens"] for status in told}
    assert len(shown) == 1
    assert written(told) == written([{**status, "placements": []} for status in told])


@pytest.mark.parametrize("rate", [2.15, 10.5, 40.5])  # between two roundings
def test_random_arrivals_at_a_constant_rate_write_next_to_nothing(rate: float) -> None:
    told = statuses(rate, minutes=30, seed=1)
    assert len({str(status["slo"]) for status in told[120:]}) > 1, "the numbers do move"
    assert len([tick for tick in written(told) if tick > 120]) <= 1


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (0.9, 0.85, False),
        (0.9, 0.75, True),
        (0.05, 0.5, False),
        (0.5, 0.76, True),
        (0.9991, 0.9995, False),
        (0.99, 0.9995, True),
        (0.9995, 0.9995, False),
        (0.9, None, False),
        (None, 0.9, True),
        (1.0, 1.0, False),
    ],
)
def test_headroom_is_written_once_more_than_it_is_twice_or_half_as_likely(
    old: float | None, new: float | None, expected: bool
) -> None:
    before, now = ({"slo": {} if quantile is None else {"quantile": quantile}} for quantile in (old, new))
    assert (least_age_seconds(before, now) == 60.0) is expected


def test_a_rate_that_doubles_is_written_within_two_minutes() -> None:
    told = statuses(10.0, minutes=20, seed=1, step=2.0)
    ticks = [tick for tick in written(told) if tick > 120]
    assert ticks[0] <= 120 + 24
    assert 17.0 <= told[ticks[-1]]["slo"]["arrivalRps"] <= 24.0
