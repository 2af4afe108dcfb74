"""One tick for all services: what is wrong with one of them is nobody else's trouble."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from holdfast.api.conditions import TRANSIENT
from holdfast.api.crd import LLMSERVICE
from holdfast.control.status.decision_record import Records, read
from holdfast.control.status.replay import decided_again
from holdfast.control.tick.loop import ClusterReader, Loop
from holdfast.control.tick.served_crds import ServedCrds
from holdfast.domain.cluster import GpuCap, NodeOffer, Replica, ReplicaPhase
from holdfast.domain.decision import Decision
from holdfast.domain.service import ServiceKey, ServiceSpec
from holdfast.domain.signals import AcceleratorTraffic, History, SignalState, Traffic
from holdfast.domain.snapshot import Timing
from holdfast.observe.endpoints.token_probe import Answer, TokenProbe
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.observe.objects.gpu_caps import GpuCaps
from holdfast.observe.signals.traffic import TrafficRequest
from holdfast.policy.settings import PolicySettings
from holdfast.runtime import telemetry
from tests.builders import NOW, condition, traffic
from tests.control.parts import llmservice, parts
from tests.fakes import FakeApi, ManualClock


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

    def catch_up(self) -> None: ...


class Acting:
    """Remembers what it was told to do."""

    def __init__(self) -> None:
        self.decided: list[str] = []
        self.invalid: dict[str, str] = {}

    def problems(self, part: ServiceParts) -> tuple[()]:
        return ()

    def set_back(self, part: ServiceParts) -> tuple[()]:
        return ()

    async def act(
        self,
        services: object,
        decisions: Iterable[Decision],
        invalid: Iterable[Invalid],
        nodes: object,
        now: float,
        traffic: object,
        records: Records,
    ) -> None:
        self.records = records
        self.decisions = {decision.key: decision for decision in decisions}
        self.decided = [key.name for key in self.decisions]
        self.invalid = {entry.key.name: entry.message for entry in invalid}


class Telemetry:
    """Counts failures."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def phase(self, name: str, seconds: float) -> None: ...

    def tick(self, seconds: float, services: int) -> None: ...

    def error(self, phase: str) -> None:
        self.errors.append(phase)


def a_loop(
    metrics: NoMetrics,
    acting: Acting,
    telemetry: Telemetry,
    cluster: ClusterReader | None = None,
    clock: Callable[[], float] = lambda: NOW,
    tick_seconds: float = 5.0,
    caps: GpuCaps | None = None,
    tokens: TokenProbe | None = None,
    wall: Callable[[], float] = lambda: NOW,
    crds: ServedCrds | None = None,
) -> Loop:
    return Loop(
        cluster=cluster or Cluster(),  # type: ignore[arg-type]
        metrics=metrics,
        actuator=acting,  # type: ignore[arg-type]
        telemetry=telemetry,
        timing=Timing(tick_seconds, 15.0),
        policy_settings=PolicySettings(),
        monotonic=clock,
        wall=wall,
        caps=caps,
        tokens=tokens,
        crds=crds,
    )


async def test_a_service_that_cannot_be_decided_on_is_told_and_leaves_the_others_alone() -> None:
    acting, telemetry = Acting(), Telemetry()
    await a_loop(NoMetrics(), acting, telemetry).run_once()
    assert acting.decided == ["chat"]
    assert "processing the spec failed (AttributeError" in acting.invalid["broken"]
    assert telemetry.errors == ["decide"]


async def test_what_a_change_was_decided_from_is_recorded_and_a_failure_to_do_so_holds_up_nothing() -> None:
    acting = Acting()
    await a_loop(NoMetrics(), acting, Telemetry()).run_once()
    ((key, decided),) = acting.decisions.items()
    assert decided_again(read(acting.records(key))) == decided
    assert acting.records(ServiceKey("prod", "gone")) == ""


class Full(GpuCaps):
    """Each namespace may have one GPU."""

    def of(self, specs: Iterable[ServiceSpec]) -> tuple[GpuCap, ...]:
        return tuple(GpuCap(spec.key.namespace, "nvidia.com/gpu", 1, "ResourceQuota gpus") for spec in specs)


class Growing(Cluster):
    """A service whose second replica has no pod yet."""

    def services(self) -> tuple[ServiceParts, ...]:
        return (parts(llmservice("chat"), ready={"h100": 1}, sizes={"h100": 2}),)


async def test_caps_of_namespaces_reach_the_decision() -> None:
    acting = Acting()
    await a_loop(NoMetrics(), acting, Telemetry(), Growing(), caps=Full()).run_once()
    ((_, decided),) = acting.decisions.items()
    assert condition(decided, "CapacityAvailable") == (False, "CapacityLimited")
    assert "ResourceQuota gpus allows namespace prod 1 nvidia.com/gpu" in str(decided.conditions)


class Losing(Growing):
    """The same service, of which the API server dropped a field."""

    def services(self) -> tuple[ServiceParts, ...]:
        return tuple(dataclasses.replace(part, not_stored=("spec.slo.e2e",)) for part in super().services())


class OldCrd(ServedCrds):
    """The API server was read, and its CRD lacks the field."""

    def __init__(self) -> None:
        super().__init__(FakeApi(), telemetry.Telemetry(), ManualClock(NOW))
        self._take(LLMSERVICE.name, ("spec.slo.e2e",))


async def test_a_field_that_an_old_crd_lost_is_told_and_changes_no_size() -> None:
    decided = []
    for cluster in (Losing(), Growing()):
        acting = Acting()
        await a_loop(NoMetrics(), acting, Telemetry(), cluster, crds=OldCrd()).run_once()
        decided += acting.decisions.values()
    lost, whole = decided
    assert condition(lost, "Stalled") == (True, "CrdTooOld")
    assert "spec.slo.e2e" in str(lost.conditions)
    assert condition(whole, "Stalled")[0] is False
    others = [tuple(c for c in each.conditions if c.type not in TRANSIENT) for each in decided]
    assert others[0] == others[1]
    assert dataclasses.replace(lost, conditions=()) == dataclasses.replace(whole, conditions=())


class Suspected(Cluster):
    """A service whose only replica looks stalled."""

    def services(self) -> tuple[ServiceParts, ...]:
        part = parts(llmservice("chat"), ready={"h100": 1}, sizes={"h100": 1})
        return (dataclasses.replace(part, urls=((part.replicas[0].name, "http://10.0.0.1:8000"),)),)


class Stalled(NoMetrics):
    """The only replica holds requests and makes no token."""

    def __init__(self, cluster: ClusterReader) -> None:
        self._names = tuple(replica.name for part in cluster.services() for replica in part.replicas)

    async def observe(self, requests: Sequence[TrafficRequest], now: float) -> Mapping[ServiceKey, Traffic]:
        return {request.key: dataclasses.replace(traffic(0.0, running=9.0), hung=self._names) for request in requests}


@pytest.mark.parametrize(
    ("answer", "ready"), [(Answer.STALLED, (False, "EngineHung")), (Answer.SERVES, (True, "Serving"))]
)
async def test_a_replica_that_looks_stalled_is_asked_for_a_token_before_it_counts_as_that(
    answer: Answer, ready: tuple[bool, str]
) -> None:
    asked, clock = list[str](), ManualClock(NOW)

    async def ask(url: str) -> Answer:
        asked.append(url)
        return answer

    acting, probe = Acting(), TokenProbe(ask, clock)
    loop = a_loop(Stalled(Suspected()), acting, Telemetry(), Suspected(), clock, tokens=probe, wall=clock)
    for _ in range(6):
        await loop.run_once()
        clock.advance(5.0)
    ((key, decided),) = acting.decisions.items()
    assert asked == ["http://10.0.0.1:8000"]
    assert condition(decided, "Ready") == ready
    assert decided_again(read(acting.records(key))) == decided


class Ending(Cluster):
    """A service of size 1 whose last pod was evicted."""

    def services(self) -> tuple[ServiceParts, ...]:
        evicted = Replica("p", "h100", ReplicaPhase.FAILING, NOW - 9.0, reason="Evicted", detail="x", unready_at=NOW)
        return (dataclasses.replace(parts(llmservice("chat"), sizes={"h100": 1}), ended=(evicted,)),)


async def test_pods_that_ended_reach_the_decision_and_its_record() -> None:
    acting = Acting()
    await a_loop(NoMetrics(), acting, Telemetry(), Ending()).run_once()
    ((key, decided),) = acting.decisions.items()
    assert condition(decided, "Ready") == (False, "PodEnded")
    assert decided_again(read(acting.records(key))) == decided


async def test_gpus_that_cannot_be_shared_out_keep_nobody_from_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the solver is ill")

    monkeypatch.setattr("holdfast.policy.decide.allocate", fail)
    acting, telemetry = Acting(), Telemetry()
    await a_loop(NoMetrics(), acting, telemetry).run_once()
    assert acting.decided == ["chat"]
    assert telemetry.errors == ["decide", "decide"]


class Waited(tuple[tuple[str, AcceleratorTraffic], ...]):
    """Rows that can be read only once the event loop has gone on."""

    gone_on: threading.Event

    def __iter__(self) -> Iterator[tuple[str, AcceleratorTraffic]]:
        assert self.gone_on.wait(timeout=60.0), "the event loop waits for the policy"
        return super().__iter__()


class Busy(NoMetrics):
    """Something is to be done as soon as the event loop comes to it."""

    async def observe(self, requests: Sequence[TrafficRequest], now: float) -> Mapping[ServiceKey, Traffic]:
        rows = Waited()
        rows.gone_on = threading.Event()
        asyncio.get_running_loop().call_soon(rows.gone_on.set)
        return {
            request.key: Traffic(SignalState.ABSENT, "no replica is ready yet", by_accelerator=rows)
            for request in requests
        }


async def test_the_event_loop_goes_on_while_the_policy_decides() -> None:
    acting, telemetry = Acting(), Telemetry()
    await a_loop(Busy(), acting, telemetry).run_once()
    assert acting.decided == ["chat"]


class SlowPhases(NoMetrics):
    """Each tick takes ages, but no phase of it takes 60 s."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.failing = False
        self.ticks = 0
        self.third = asyncio.Event()

    async def observe(self, requests: Sequence[TrafficRequest], now: float) -> Mapping[ServiceKey, Traffic]:
        self._clock.advance(45.0)
        self.ticks += 1
        if self.ticks == 3:
            self.third.set()
        if self.failing:
            raise RuntimeError("a bug")
        return await super().observe(requests, now)


class Watching(Acting):
    """Takes its time, and asks whether the kubelet would end the process now."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.loop: Loop | None = None
        self.alive: list[bool] = []

    async def act(self, *args: Any) -> None:
        await super().act(*args)
        self._clock.advance(45.0)
        assert self.loop is not None
        self.alive.append(self.loop.alive())


async def test_a_slow_tick_keeps_a_leader_alive_as_long_as_its_phases_end() -> None:
    clock = ManualClock()
    metrics, acting = SlowPhases(clock), Watching(clock)
    acting.loop = loop = a_loop(metrics, acting, Telemetry(), clock=clock, tick_seconds=0.01)
    running = asyncio.create_task(loop.run())
    await metrics.third.wait()
    running.cancel()
    assert acting.alive == [True, True]
    clock.advance(61.0)
    assert not loop.alive(), "a phase that never ends is no progress"


async def test_a_tick_that_fails_again_and_again_is_no_progress() -> None:
    clock = ManualClock()
    metrics = SlowPhases(clock)
    metrics.failing = True
    loop = a_loop(metrics, Acting(), Telemetry(), clock=clock, tick_seconds=0.01)
    running = asyncio.create_task(loop.run())
    await metrics.third.wait()
    running.cancel()
    assert not loop.alive()
