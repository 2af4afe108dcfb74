"""What an activator tells reaches the decision of the same tick."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.api.reasons import Reason
from holdfast.control.tick.loop import Loop
from holdfast.domain.activator import Activator
from holdfast.domain.cluster import NodeOffer
from holdfast.domain.decision import Decision
from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import Timing
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.policy.settings import PolicySettings
from tests.builders import NOW
from tests.control.parts import llmservice, parts
from tests.control.test_loop import NoMetrics, Telemetry


class AtZero:
    """One service without replicas that may rest, and one that may not."""

    def services(self) -> tuple[ServiceParts, ...]:
        return parts(llmservice(scaling={"min": 0}), sizes={"h100": 0}), parts(llmservice("busy"), sizes={"h100": 1})

    def invalid(self) -> tuple[Invalid, ...]:
        return ()

    def nodes(self) -> tuple[NodeOffer, ...]:
        return ()


class Told:
    """Activators that tell what they are told to."""

    def __init__(self, *told: Activator) -> None:
        self.told = list(told)
        self.asked: list[ServiceKey] = []

    async def look(self, keys: Sequence[ServiceKey]) -> Mapping[ServiceKey, Activator]:
        self.asked = list(keys)
        told = self.told.pop(0)
        return dict.fromkeys(keys, told)


class Acting:
    """Remembers decisions; the API server has done what was asked."""

    def __init__(self) -> None:
        self.decisions: dict[str, Decision] = {}

    def problems(self, part: ServiceParts) -> tuple[()]:
        return ()

    def set_back(self, part: ServiceParts) -> tuple[()]:
        return ()

    def holding(self, key: ServiceKey) -> bool:
        return True

    async def act(self, services: object, decisions: Iterable[Decision], *rest: Any) -> None:
        self.decisions = {decision.key.name: decision for decision in decisions}


def looping(acting: Acting, activators: Told) -> Loop:
    return Loop(
        cluster=AtZero(),
        metrics=NoMetrics(),
        actuator=acting,  # type: ignore[arg-type]
        telemetry=Telemetry(),
        timing=Timing(5.0, 15.0),
        policy_settings=PolicySettings(),
        monotonic=lambda: NOW,
        wall=lambda: NOW,
        activators=activators,
    )


async def test_lookups_that_hang_hold_up_no_decision() -> None:
    acting, hanging, event_loop = Acting(), threading.Event(), asyncio.get_running_loop()
    event_loop.set_default_executor(ThreadPoolExecutor(1))
    lookup = event_loop.run_in_executor(None, hanging.wait)
    try:
        async with asyncio.timeout(60.0):
            await looping(acting, Told(Activator(True))).run_once()
    finally:
        hanging.set()
        await lookup
    assert acting.decisions.keys() == {"chat", "busy"}


async def test_a_request_that_is_held_starts_a_replica_in_the_tick_that_hears_of_it() -> None:
    acting, activators = Acting(), Told(Activator(True), Activator(True, waiting=1, oldest_seconds=2.0))
    loop = looping(acting, activators)
    await loop.run_once()
    assert (acting.decisions["chat"].verdict.replicas, acting.decisions["chat"].holding) == (0, True)
    await loop.run_once()
    woken = acting.decisions["chat"]
    assert (woken.verdict.replicas, woken.verdict.reason) == (1, Reason.REQUESTS_HELD)
    assert activators.asked == [ServiceKey("prod", "chat")]
