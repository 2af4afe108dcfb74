"""One tick for all services: what is wrong with one of them is nobody else's trouble."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from holdfast import policy
from holdfast.control.loop import Loop
from holdfast.domain.cluster import NodeOffer
from holdfast.domain.decision import Decision
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import History, SignalState, Traffic
from holdfast.domain.snapshot import Timing
from holdfast.observe.cluster import Invalid, ServiceParts
from holdfast.observe.traffic import TrafficRequest
from tests.builders import NOW
from tests.control.parts import llmservice, parts


class Cluster:
    """Two services, one of which no policy can work with."""

    def services(self) -> tuple[ServiceParts, ...]:
        broken = parts(llmservice("broken"))
        spec = dataclasses.replace(broken.spec, slo=None)  # type: ignore[arg-type]
        return dataclasses.replace(broken, spec=spec), parts(llmservice("chat"))

    def invalid(self) -> tuple[Invalid, ...]:
        return ()

    def nodes(self) -> tuple[NodeOffer, ...]:
        return ()


class NoMetrics:
    """Nothing is known yet."""

    async def observe(self, requests: Sequence[TrafficRequest], now: float) -> Mapping[ServiceKey, Traffic]:
        return {request.key: Traffic(SignalState.ABSENT, "no replica is ready yet") for request in requests}

    async def history(self, requests: Sequence[TrafficRequest], now: float) -> Mapping[ServiceKey, History]:
        return {}

    async def running_by_pod(self, keys: Iterable[ServiceKey], now: float) -> Mapping[ServiceKey, Mapping[str, float]]:
        return {}


class Acting:
    """Remembers what it was told to do."""

    def __init__(self) -> None:
        self.decided: list[str] = []
        self.invalid: dict[str, str] = {}

    def problems(self, key: ServiceKey) -> tuple[()]:
        return ()

    async def act(
        self,
        services: object,
        decisions: Iterable[Decision],
        invalid: Iterable[Invalid],
        nodes: object,
        now: float,
        traffic: object,
    ) -> None:
        self.decided = [decision.key.name for decision in decisions]
        self.invalid = {entry.key.name: entry.message for entry in invalid}


class Telemetry:
    """Counts failures."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def phase(self, name: str, seconds: float) -> None: ...

    def tick(self, seconds: float, services: int) -> None: ...

    def error(self, phase: str) -> None:
        self.errors.append(phase)


async def test_a_service_that_cannot_be_decided_on_is_told_and_leaves_the_others_alone() -> None:
    acting, telemetry = Acting(), Telemetry()
    loop = Loop(
        cluster=Cluster(),
        metrics=NoMetrics(),
        actuator=acting,  # type: ignore[arg-type]
        telemetry=telemetry,
        timing=Timing(5.0, 15.0),
        policy_settings=policy.PolicySettings(),
        monotonic=lambda: NOW,
        wall=lambda: NOW,
    )
    await loop.run_once()
    assert acting.decided == ["chat"]
    assert "it cannot be worked out (AttributeError" in acting.invalid["broken"]
    assert telemetry.errors == ["decide"]
