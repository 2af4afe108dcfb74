"""A new leader decides at once on what it knows; what Prometheus remembers comes later, and until then nothing shrinks.

The clock is virtual: a tick every 5 s.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator

import pytest

from holdfast.api.conditions import ConditionType
from holdfast.api.status import BatchingStatus
from holdfast.control.status.report import status_of
from holdfast.control.tick.loop import Loop
from holdfast.domain.cluster import NodeOffer
from holdfast.domain.decision import Action, Decision
from holdfast.domain.signals import History, RateSample
from holdfast.domain.snapshot import Timing
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.observe.series.samples import QueryError
from holdfast.observe.signals.traffic import TrafficRequest
from holdfast.policy.settings import PolicySettings
from tests.builders import condition, traffic
from tests.control.parts import llmservice, parts
from tests.control.test_loop import Acting, Telemetry
from tests.fakes import FakeHistoryStore, ManualClock

TICK = SCRAPE = 5.0
SIZE = 6
SLOW = QueryError("history: Prometheus did not answer in time")


class Watched:
    """Services that all have more replicas than their load needs."""

    def __init__(self, *names: str) -> None:
        self.parts = {name: self._part(name) for name in names}

    def services(self) -> tuple[ServiceParts, ...]:
        return tuple(self.parts.values())

    def invalid(self) -> tuple[Invalid, ...]:
        return ()

    def nodes(self) -> tuple[NodeOffer, ...]:
        return ()

    def _part(self, name: str) -> ServiceParts:
        service = llmservice(name, accelerators=[{"name": "h100"}], scaling={"min": 1, "max": 9})
        return parts(service, ready={"h100": SIZE}, sizes={"h100": SIZE})


def an_hour(_: TrafficRequest, now: float) -> History:
    """Steady load: 1 req/s, all of it good but for one request in a thousand."""
    samples = (RateSample(now - 30.0 * index, 30.0, 30.0, 29.97, 0.03) for index in range(120))
    return History(tuple(samples), since=now - 3600.0)


class Operator:
    """The loop with a slow store; `decisions` are those of the newest tick, by name."""

    def __init__(self, store: FakeHistoryStore, *names: str) -> None:
        self.store, self.clock, self.acting, self.telemetry = store, ManualClock(1.7e9), Acting(), Telemetry()
        self.watched = Watched(*names)
        self.loop = Loop(
            cluster=self.watched,  # type: ignore[arg-type]
            metrics=store,
            actuator=self.acting,  # type: ignore[arg-type]
            telemetry=self.telemetry,
            timing=Timing(TICK, SCRAPE),
            policy_settings=PolicySettings(),
            monotonic=self.clock,
            wall=self.clock,
        )

    async def ticks(self, count: int) -> Iterator[dict[str, Decision]]:
        """Let so many ticks pass; the decisions of each."""
        seen = []
        for _ in range(count):
            await self.loop.run_once()
            for _ in range(20):  # what is ready to go on does so
                await asyncio.sleep(0.0)
            self.clock.advance(TICK)
            seen.append({key.name: decided for key, decided in self.acting.decisions.items()})
        return iter(seen)


def an_operator(*names: str, answers: bool = False) -> Operator:
    store = FakeHistoryStore(an_hour, traffic(1.0, seconds=30.0))
    if answers:
        store.answers.set()
    return Operator(store, *(names or ("chat",)))


def action(decided: Decision) -> Action:
    return decided.verdict.action


async def test_the_first_tick_ends_while_the_history_is_still_being_read() -> None:
    operator = an_operator()
    (first,) = await operator.ticks(1)
    assert action(first["chat"]) is Action.HOLD
    assert operator.store.reads == [("chat",)]
    assert not operator.store.answers.is_set()


async def test_no_size_is_lowered_until_the_history_is_there() -> None:
    operator = an_operator()
    before = [each["chat"] for each in await operator.ticks(120)]
    assert {action(each) for each in before} == {Action.HOLD}
    assert "until the service's history has been read" in before[-1].verdict.message
    operator.store.answers.set()
    after = [each["chat"] for each in await operator.ticks(6)]
    assert Action.SCALE_DOWN in map(action, after), "its hold time is over: only the history was missing"


async def test_once_it_is_there_the_decision_is_that_of_an_operator_that_had_it_from_the_start() -> None:
    early, late = an_operator(answers=True), an_operator()
    await early.ticks(8)
    await late.ticks(8)
    late.store.answers.set()
    await early.ticks(2)
    await late.ticks(2)
    for ours, theirs in zip(await late.ticks(30), await early.ticks(30), strict=True):
        assert (action(ours["chat"]), ours["chat"].verdict.reason) == (
            action(theirs["chat"]),
            theirs["chat"].verdict.reason,
        )
        assert ours["chat"].verdict.targets == theirs["chat"].verdict.targets
        assert [(c.type, c.status, c.reason) for c in ours["chat"].conditions] == [
            (c.type, c.status, c.reason) for c in theirs["chat"].conditions
        ]
        assert ours["chat"].slo.attainment == pytest.approx(theirs["chat"].slo.attainment, abs=1e-4)
        assert ours["chat"].explanation.forecast_rps == pytest.approx(theirs["chat"].explanation.forecast_rps, rel=0.03)


async def test_a_service_whose_history_cannot_be_read_is_told_and_held_and_no_other_one_is() -> None:
    operator = an_operator("chat", "code", answers=True)
    operator.store.failing = {"chat": SLOW}
    *_, last = await operator.ticks(120)
    told = {c.type: c.message for c in last["chat"].conditions}
    assert condition(last["chat"], "ScalingActive") == (False, "MetricsHold")
    assert "reading the service's history failed: history: Prometheus did not answer in time" in told["ScalingActive"]
    assert "are not counted yet: history: Prometheus did not answer in time" in told["SLOMet"]
    assert action(last["chat"]) is Action.HOLD
    assert action(last["code"]) is Action.SCALE_DOWN
    assert condition(last["code"], "ScalingActive")[0]
    operator.store.failing = {}
    *_, last = await operator.ticks(70)
    assert action(last["chat"]) is Action.SCALE_DOWN


async def test_a_size_may_rise_without_a_history() -> None:
    operator = an_operator()
    operator.store.live = traffic(400.0, seconds=30.0)
    assert Action.SCALE_UP in {action(each["chat"]) for each in await operator.ticks(3)}


async def test_a_service_that_is_deleted_meanwhile_is_forgotten() -> None:
    operator = an_operator("chat", "code")
    await operator.ticks(2)
    del operator.watched.parts["chat"]
    operator.store.answers.set()
    *_, last = await operator.ticks(4)
    assert last.keys() == {"code"}
    assert operator.store.reads == [("chat", "code")]
    assert not operator.telemetry.errors


async def test_what_status_says_of_the_window_stays_while_the_history_is_read() -> None:
    operator = an_operator()
    (first,) = await operator.ticks(1)
    part = operator.watched.parts["chat"]
    met = {"type": "SLOMet", "status": "True", "reason": "ObjectiveMet", "message": "99.9 % were good"}
    old = {"conditions": [{**met, "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}]}
    told = status_of(part, first["chat"], BatchingStatus(), old, operator.clock())["conditions"]
    assert next(each for each in told if each["type"] == ConditionType.SLO_MET) == old["conditions"][0]
    new = status_of(part, first["chat"], BatchingStatus(), {}, operator.clock())["conditions"]
    assert next(each["message"] for each in new if each["type"] == "SLOMet").endswith(
        "still being read from Prometheus"
    )


async def test_a_decision_that_fails_loses_no_history() -> None:
    operator = an_operator(answers=True)
    await operator.ticks(1)
    whole = operator.watched.parts["chat"]
    unusable = dataclasses.replace(whole.spec, min_replicas=None)  # type: ignore[arg-type]
    operator.watched.parts["chat"] = dataclasses.replace(whole, spec=unusable)
    await operator.ticks(3)
    assert operator.telemetry.errors
    operator.watched.parts["chat"] = whole
    (last,) = await operator.ticks(1)
    assert last["chat"].slo.attainment == pytest.approx(0.999, abs=1e-3)
    assert operator.store.reads == [("chat",)]
