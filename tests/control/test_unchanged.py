"""A service at rest costs next to nothing, and what is written is what would be written without any rest."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.api.conditions import ConditionType
from holdfast.api.llmservice import LLMService
from holdfast.api.reasons import Reason
from holdfast.control.writes.actuator import Actuator
from holdfast.control.writes.unchanged import SettledService
from holdfast.domain.decision import Action, BatchingTarget, CapacityView, ConditionValue, Decision, SloView
from holdfast.domain.engine import EngineFacts
from holdfast.domain.service import BatchingLimits
from holdfast.domain.signals import LatencyQuantiles
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.render import RenderSettings
from tests.control.parts import as_watched, decision, llmservice, parts
from tests.control.test_actuator import SERVICES, Metrics, Told, cluster

CHAT = f"{SERVICES}/chat"


class Counting(Actuator):
    """Counts the ticks at rest."""

    rested = 0

    def _is_at_rest(self, *seen: Any) -> bool:
        rests = super()._is_at_rest(*seen)
        self.rested += rests
        return rests


class Restless(Actuator):
    """Goes through everything in every tick."""

    def _is_at_rest(self, *_: Any) -> bool:
        return False


@dataclass(frozen=True)
class Look:
    """One tick: how long after the last one, what is decided, and what runs; `edited` status comes from elsewhere."""

    seconds: float = 5.0
    rate: float = 10.0
    latency: float = 0.2
    attainment: float | None = 0.995
    bound_by: str = "TPOT"
    met: bool | None = True
    reason: Reason = Reason.STEADY
    action: Action = Action.HOLD
    recommended: bool = False
    tried: int | None = None
    cold_start: float = 60.0
    ready: int = 2
    accepted: float | None = None
    generation: int = 1
    edited: str = ""
    shown: bool = True  # whether the watch keeps up with what is written

    def decision(self, part: ServiceParts) -> Decision:
        made, quantiles = decision(part, self.action, h100=2), LatencyQuantiles(self.latency, 2 * self.latency)
        verdict = replace(made.verdict, reason=self.reason, message=f"{self.rate:.1f} req/s expected")
        share = f"{100 * (self.attainment or 0.0):.4g}% of the requests of the last 1h were good"
        return replace(
            made,
            generation=self.generation,
            verdict=verdict,
            conditions=(*made.conditions, ConditionValue(ConditionType.SLO_MET, self.met, "Word", share)),
            slo=SloView(self.attainment, 0.5, self.rate, self.rate, 100 * self.rate, quantiles, quantiles),
            capacity=CapacityView("h100", self.rate, self.bound_by, min(1.0, self.rate / 20.0)),
            cold_start_seconds=self.cold_start,
            recommendation=verdict if self.recommended else None,
            engines=(("h100", EngineFacts(accepted_drafts=self.accepted)),),
            batching=None if self.tried is None else BatchingTarget("h100", BatchingLimits(self.tried)),
        )


class World:
    """An API server with one service of two replicas, and what acts on it."""

    def __init__(self, kind: type[Actuator]) -> None:
        self.api, self.service, self.now = cluster(), llmservice(), 1_000.0
        self.acting = kind(self.api, Metrics(), Told(), RenderSettings({"a.py": ""}), lambda: True)

    async def create(self) -> None:
        part = parts(self.service)
        await self._act(part, decision(part, Action.CREATE, h100=2))

    async def tick(self, look: Look) -> list[Any]:
        """Return what is written."""
        self.now += look.seconds
        if look.edited:
            self.api.edit(CHAT, {"status": {"url": look.edited}})
        if look.shown and self.api.objects[CHAT].get("status", {}) != self.service.status:
            self.service = LLMService.parse(self.api.objects[CHAT])
        part = as_watched(parts(self.service, sizes={"h100": 2}, ready={"h100": look.ready}), self.api)
        return await self._act(part, look.decision(part))

    async def _act(self, part: ServiceParts, decided: Decision) -> list[Any]:
        self.api.requests.clear()
        await self.acting.act([part], [decided], [], [], self.now)
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
        return [request for request in self.api.requests if request[0] != "GET"]


async def writes(kind: type[Actuator], looks: Sequence[Look]) -> tuple[list[list[Any]], Actuator]:
    """What is written in each tick."""
    world = World(kind)
    await world.create()
    return [await world.tick(look) for look in looks], world.acting


CHANGES = st.one_of(
    st.fixed_dictionaries({"rate": st.sampled_from([0.0, 9.4, 9.9, 10.0, 10.4, 10.9, 11.4, 12.0, 20.0])}),
    st.fixed_dictionaries({"latency": st.sampled_from([0.19, 0.2, 0.21, 0.23, 0.95, 0.99, 1.0, 1.05])}),
    st.fixed_dictionaries({"attainment": st.sampled_from([None, 0.99, 0.995, 0.9951, 0.9956, 1.0])}),
    st.fixed_dictionaries({"seconds": st.sampled_from([-30.0, 0.0, 5.0, 20.0, 61.0, 310.0])}),
    st.fixed_dictionaries({"met": st.sampled_from([None, True, False])}),
    st.fixed_dictionaries({"bound_by": st.sampled_from(["TPOT", "TTFT"])}),
    st.fixed_dictionaries({"reason": st.sampled_from([Reason.STEADY, Reason.DOWN_HOLD])}),
    st.fixed_dictionaries({"action": st.sampled_from([Action.HOLD, Action.SCALE_UP])}),
    st.fixed_dictionaries({"recommended": st.booleans()}),
    st.fixed_dictionaries({"tried": st.sampled_from([None, 64, 128])}),
    st.fixed_dictionaries({"cold_start": st.sampled_from([60.0, 63.0])}),
    st.fixed_dictionaries({"ready": st.sampled_from([1, 2])}),
    st.fixed_dictionaries({"accepted": st.sampled_from([None, 1.0, 1.05, 2.0])}),
    st.fixed_dictionaries({"generation": st.sampled_from([1, 2])}),
    st.fixed_dictionaries({"edited": st.sampled_from(["", "http://elsewhere"])}),
    st.fixed_dictionaries({"shown": st.booleans()}),
)


@st.composite
def days(draw: st.DrawFn) -> list[Look]:
    """Now and then one thing changes; in between, ticks pass."""
    look, looks = Look(), []
    for change, ticks in draw(st.lists(st.tuples(CHANGES, st.integers(1, 4)), max_size=12)):
        look = replace(look, **change)
        looks += [look] * ticks
    return looks


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(days())
def test_rest_changes_nothing_of_what_is_written(looks: list[Look]) -> None:
    assert asyncio.run(writes(Actuator, looks))[0] == asyncio.run(writes(Restless, looks))[0]


async def test_figures_that_move_within_noise_do_not_end_a_rest() -> None:
    rates = [10.0, 10.0, 10.0, *(10.0 + 0.1 * (tick % 7) for tick in range(9))]
    written, acting = await writes(Counting, [Look(rate=rate, attainment=0.99 + 0.00001 * rate) for rate in rates])
    assert written[2:] == [[]] * 10
    assert isinstance(acting, Counting)
    assert acting.rested >= 9


async def test_a_drift_in_small_steps_is_written_once_it_adds_up_to_a_tenth() -> None:
    drift = [Look(seconds=30.0, rate=10.0 * 1.02**step) for step in range(12)]
    written, _ = await writes(Actuator, [Look(), Look(seconds=100.0), *drift])
    told = [requests[0][3]["status"]["slo"]["arrivalRps"] for requests in written[2:] if requests]
    assert told == pytest.approx([11.0, 12.0], abs=0.5)
    assert written[2:5] == [[], [], []]


async def test_figures_that_wait_for_their_minute_wait_at_rest() -> None:
    looks = [Look(), Look(), *(Look(rate=20.0 + tick) for tick in range(14))]
    written, acting = await writes(Counting, looks)
    assert sum(map(len, written[2:])) == 1
    assert isinstance(acting, Counting)
    assert acting.rested >= 9


@pytest.mark.parametrize(
    "news",
    [
        pytest.param({"met": False}, id="a condition"),
        pytest.param({"ready": 1}, id="a replica that is lost"),
        pytest.param({"generation": 2}, id="another generation"),
    ],
)
async def test_news_end_a_rest_at_once(news: dict[str, Any]) -> None:
    written, _ = await writes(Actuator, [*([Look()] * 5), replace(Look(), **news)])
    assert written[4] == []
    assert any(path.endswith("/status") for _, path, _, _ in written[5])


async def test_the_newest_decision_is_published_though_nothing_is_told_of_it() -> None:
    class Published(Told):
        rates: list[float | None]

        def decided(self, decision: Decision) -> None:
            self.rates.append(decision.slo.arrival_rps)

    world, published = World(Actuator), Published()
    published.rates = []
    world.acting = Actuator(world.api, Metrics(), published, RenderSettings({"a.py": ""}), lambda: True)
    await world.create()
    for rate in (10.0, 10.0, 10.0, 10.1, 10.2):
        await world.tick(Look(rate=rate))
    assert published.rates[-2:] == [10.1, 10.2]


def test_rests_that_began_together_do_not_end_in_one_tick() -> None:
    written: dict[str, Any] = {}
    known = [parts(llmservice(f"s{number:03}")) for number in range(100)]
    ended: list[int] = []
    for part in known:
        held = decision(part, Action.HOLD, h100=1)
        rest = SettledService(held, (), written, 0.0, math.inf)
        ended.append(next(tick for tick in range(100) if not rest.holds(part, held, (), written, 5.0 * tick)))
    assert min(ended) >= 30
    assert max(ended) <= 60
    assert max(map(ended.count, ended)) <= 12
