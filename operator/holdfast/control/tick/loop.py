"""The slow loop: the steps of one tick, for all services on one snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from holdfast.control.benchmarks.benchmarks import Benchmarks
from holdfast.control.objects.router_problem import router_problem
from holdfast.control.status import decision_record
from holdfast.control.tick.served_crds import ServedCrds
from holdfast.control.tick.targets import Found, Targets
from holdfast.control.writes.actuator import Actuator
from holdfast.domain.activator import Activator
from holdfast.domain.benchmark import Measured, newest
from holdfast.domain.cluster import NodeOffer
from holdfast.domain.service import PREFILL, ServiceKey
from holdfast.domain.signals import SignalState, Traffic
from holdfast.domain.snapshot import ServiceSnapshot, Snapshot, Timing
from holdfast.observe.endpoints.activators import ActivatorSource, NoActivators
from holdfast.observe.endpoints.token_probe import TokenProbe
from holdfast.observe.objects.benchmarks import Benchmark
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.observe.objects.gpu_caps import GpuCaps
from holdfast.observe.objects.mapping import epoch
from holdfast.observe.signals.prometheus import MetricsSource
from holdfast.observe.signals.restore import HistoryRestore, Restored
from holdfast.observe.signals.traffic import TrafficRequest
from holdfast.policy.decide import decide
from holdfast.policy.memory import FleetContext, Memory
from holdfast.policy.settings import PolicySettings
from holdfast.rendered.names import activator_name

_LOG = logging.getLogger(__name__)
_LEAST_PAUSE_SECONDS = 1.0  # a burst of edits must not become a burst of queries
_STUCK_AFTER_TICKS = 12


class ClusterReader(Protocol):
    """What the loop reads of the API server, from caches: no call costs a request."""

    def services(self) -> tuple[ServiceParts, ...]: ...

    def invalid(self) -> tuple[Invalid, ...]: ...

    def nodes(self) -> tuple[NodeOffer, ...]: ...

    def benchmarks(self) -> tuple[Benchmark, ...]: ...


class LoopTelemetry(Protocol):
    """Metrics of the loop."""

    def phase(self, name: str, seconds: float) -> None: ...

    def tick(self, seconds: float, services: int) -> None: ...

    def error(self, phase: str) -> None: ...


class Loop:
    """Observes, decides and acts once per tick; all dependencies are constructor arguments."""

    def __init__(
        self,
        *,
        cluster: ClusterReader,
        metrics: MetricsSource,
        actuator: Actuator,
        telemetry: LoopTelemetry,
        timing: Timing,
        policy_settings: PolicySettings,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
        activators: ActivatorSource | None = None,
        benchmarks: Benchmarks | None = None,
        caps: GpuCaps | None = None,
        targets: Targets | None = None,
        crds: ServedCrds | None = None,
        tokens: TokenProbe | None = None,
    ) -> None:
        self._cluster = cluster
        self._caps = caps or GpuCaps()
        self._targets = targets
        self._crds = crds
        self._tokens = tokens or TokenProbe(monotonic=monotonic)
        self._metrics = metrics
        self._actuator = actuator
        self._telemetry = telemetry
        self._timing = timing
        self._policy_settings = policy_settings
        self._monotonic = monotonic
        self._wall = wall
        self._activators = activators or NoActivators()
        # Our own pool: if DNS does not answer, lookups occupy every thread of the event loop's pool for minutes.
        self._thinking = ThreadPoolExecutor(1, "decide")
        self._benchmarks = benchmarks
        self._memory = Memory()
        self._restore = HistoryRestore(metrics, monotonic, wall)
        self._wake = asyncio.Event()
        self._progressed_at: float | None = None
        self._failing = False

    def wake(self) -> None:
        """Tick soon: an LLMService changed."""
        self._wake.set()

    def alive(self) -> bool:
        """Whether a phase of a tick ended recently; a process that does not lead has no ticks and is healthy.

        With thousands of services the first tick may take longer than this, and each of its phases may not. After a
        failed tick only a whole one counts: a tick that fails again and again is no progress.
        """
        if self._progressed_at is None:
            return True
        return self._monotonic() - self._progressed_at < max(60.0, _STUCK_AFTER_TICKS * self._timing.tick_seconds)

    async def run(self) -> None:
        """Tick forever; a failed tick is logged and counted, and the next one starts from the state at that time."""
        self._progressed_at = self._monotonic()
        while True:
            started_at = self._monotonic()
            self._wake.clear()
            try:
                await self.run_once()
                self._progressed_at, self._failing = self._monotonic(), False
            except Exception:
                self._failing = True
                self._telemetry.error("tick")
                _LOG.exception("tick failed")
            await self._pause(started_at)

    async def run_once(self) -> None:
        """Read, take a snapshot, decide, write."""
        started_at, now = self._monotonic(), self._wall()
        with self._phase("cluster"):
            found = await self._found(now)
            services = found.parts
            benchmarks = self._cluster.benchmarks() if self._benchmarks else ()
            measured = self._benchmarks.results(benchmarks) if self._benchmarks else {}
            lost = self._crds.lost_fields(services, benchmarks) if self._crds else {}
        with self._phase("metrics"):
            requests = [_request(part) for part in services]
            urls = {part.spec.key: dict(part.urls) for part in services}
            traffic = self._tokens.proven(await self._metrics.observe(requests, now), urls)
            restored = self._restore.read(requests, now, any(map(_answered, traffic.values())))
            held = await self._activators.look([part.spec.key for part in services if _may_be_held(part)])
        with self._phase("decide"):
            snapshot = self._picture(found, traffic, restored, held, measured, lost, now)
            failed: dict[ServiceKey, Exception] = {}
            contexts: dict[ServiceKey, FleetContext] = {}
            # On a thread: meanwhile the event loop renews the lease, reads watches and runs slow queries.
            deciding = functools.partial(
                decide,
                snapshot,
                self._memory,
                self._policy_settings,
                failed=failed.__setitem__,
                unshared=self._unshared,
                recorded=contexts.__setitem__,
            )
            records = functools.partial(_record, snapshot, self._memory, self._policy_settings, contexts)
            decisions, self._memory = await asyncio.get_running_loop().run_in_executor(self._thinking, deciding)
            self._restore.learned({key: found for key, found in restored.found.items() if key not in failed})
        with self._phase("act"):
            invalid = (*self._cluster.invalid(), *found.refused, *self._undecided(services, failed))
            await self._actuator.act(services, decisions, invalid, snapshot.nodes, now, traffic, records)
            if self._benchmarks:
                owned = [part for part in services if part.adoption is None]
                await self._benchmarks.tell_use(benchmarks, owned, snapshot.services, decisions, now)
                await self._benchmarks.act(benchmarks, services, now)
        self._telemetry.tick(self._monotonic() - started_at, len(services))
        self._metrics.catch_up()

    async def _found(self, now: float) -> Found:
        """All services and nodes; of those with a target, what the API server has of their Deployments."""
        services, nodes = self._cluster.services(), self._cluster.nodes()
        return Found(services, (), nodes) if self._targets is None else await self._targets.look(services, nodes, now)

    def _unshared(self, error: Exception) -> None:
        self._telemetry.error("decide")
        _LOG.error("the fleet allocation failed; all services keep their last allocation", exc_info=error)

    def _undecided(self, services: Sequence[ServiceParts], failed: Mapping[ServiceKey, Exception]) -> Iterator[Invalid]:
        """Report each service for which the decision failed: a bug of ours, which does not affect other services."""
        for part in services:
            error = failed.get(part.spec.key)
            if error is not None:
                self._telemetry.error("decide")
                _LOG.error("%s: deciding failed", part.spec.key, exc_info=error)
                yield Invalid.undecidable(part.service, error)

    def _picture(
        self,
        found: Found,
        traffic: Mapping[ServiceKey, Traffic],
        restored: Restored,
        held: Mapping[ServiceKey, Activator],
        measured: Mapping[str, Sequence[Measured]],
        lost: Mapping[ServiceKey, tuple[str, ...]],
        now: float,
    ) -> Snapshot:
        pictured = tuple(
            ServiceSnapshot(
                spec=part.spec,
                traffic=traffic[part.spec.key],
                replicas=part.replicas,
                placements=part.placements,
                problems=part.problems + self._actuator.problems(part) + router_problem(part, now),
                history=restored.found.get(part.spec.key),
                recalled=part.recalled,
                activator=self._activator(part.spec.key, held),
                measured=newest(measured.get(part.spec.key.namespace, ()), part.spec),
                born_at=epoch(part.born),
                ended=part.ended,
                missing_history=restored.missing.get(part.spec.key),
                set_back=self._actuator.set_back(part),
                lost_fields=lost.get(part.spec.key, ()),
            )
            for part in found.parts
        )
        caps = self._caps.of(part.spec for part in found.parts)
        return Snapshot(now, pictured, found.nodes, self._timing, caps)

    def _activator(self, key: ServiceKey, held: Mapping[ServiceKey, Activator]) -> Activator | None:
        """State of the activator, with whether clients are routed to it."""
        activator = held.get(key)
        return None if activator is None else dataclasses.replace(activator, leads=self._actuator.holding(key))

    async def _pause(self, started_at: float) -> None:
        await asyncio.sleep(min(_LEAST_PAUSE_SECONDS, self._timing.tick_seconds))
        remaining = started_at + self._timing.tick_seconds - self._monotonic()
        if remaining > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), remaining)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started_at = self._monotonic()
        yield
        ended_at = self._monotonic()
        self._telemetry.phase(name, ended_at - started_at)
        if not self._failing:
            self._progressed_at = ended_at


def _record(
    snapshot: Snapshot,
    memory: Memory,
    settings: PolicySettings,
    contexts: Mapping[ServiceKey, FleetContext],
    key: ServiceKey,
) -> str:
    """Record of a change's inputs; the change is published even if the record cannot be written."""
    try:
        return decision_record.written(decision_record.record_of(key, snapshot, memory, settings, contexts[key]))
    except Exception:
        _LOG.exception("%s: recording the decision failed", key)
        return ""


def _may_be_held(part: ServiceParts) -> bool:
    """Whether its requests may be held: it may scale to zero, or did until recently and its activator still exists."""
    if not part.spec.min_replicas:
        return True
    shown = part.shown("Deployment", activator_name(part.spec.key.name))
    return shown is not None and bool(shown.uid)


def _request(part: ServiceParts) -> TrafficRequest:
    on_trial = any(placement.batching_before is not None for placement in part.placements)
    target = (part.adoption.workload.name, part.spec.accelerators[0].name) if part.adoption else ("", "")
    uid, born_at = part.spec.uid, epoch(part.born)
    pools = () if part.prefill is None else (part.spec.key._replace(pool=PREFILL),)
    return TrafficRequest(part.spec.key, part.spec.slo, part.replicas, on_trial, uid, born_at, *target, pools)


def _answered(traffic: Traffic) -> bool:
    return traffic.state is not SignalState.UNREACHABLE
