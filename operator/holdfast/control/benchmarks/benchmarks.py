"""Runs benchmarks: one Job per spec, one at a time per target; its result becomes status and a ConfigMap.

The name of a Job follows from the spec and its generation, and running Jobs are read one by one. So nothing is watched,
and a Job is found again after a restart. An ended benchmark costs no request.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from holdfast.act import benchmarks as acting
from holdfast.act.api import ApiError, ApiPort, ApiUnreachable, NotLeading, WhileLeading
from holdfast.act.apply import Applier, ForeignObject
from holdfast.api.conditions import COMPLETE
from holdfast.api.reasons import Reason
from holdfast.control.benchmarks import benchmark_capacity, benchmark_progress, benchmark_report, benchmark_use
from holdfast.control.benchmarks.benchmark_progress import Progress, waiting
from holdfast.domain.benchmark import Engines, JobSeen, JobState, Measured, Phase, Remembered
from holdfast.domain.decision import Decision
from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.observe.objects.benchmark_engines import engine_to_start, engines_of, own_engine
from holdfast.observe.objects.benchmarks import Benchmark, engines_remembered, job_seen, measured_by, remembered
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.render import RenderSettings
from holdfast.render.benchmark import Measurand, config_map, job, measurand
from holdfast.rendered.own_engine import OwnEngine

_LOG = logging.getLogger(__name__)
_ACT_SECONDS = 5.0
_ECHO_SECONDS = 120.0  # after it, a finished load is no longer part of the observed arrivals
_ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED})
_REFUSALS = frozenset({400, 403, 422})  # by a quota, admission or rights: a retry at every tick does not help


class BenchmarkTelemetry(Protocol):
    """Metrics of acting."""

    def error(self, phase: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Case:
    """One benchmark in one tick: its spec, its recorded run, and the service it measures."""

    entry: Benchmark
    status: Mapping[str, Any]
    of: Measurand | None
    part: ServiceParts | None

    @property
    def known(self) -> Remembered:
        return remembered(self.status)

    @property
    def engine(self) -> OwnEngine | str | None:
        """The engine that a tuning run starts, or the reason why it cannot; None for all other runs."""
        declared = self.entry.declared
        tune = None if declared is None else declared.spec.tune
        return None if tune is None or self.part is None else engine_to_start(self.part, tune)

    @property
    def lacks(self) -> str:
        """What is missing of the referenced service; empty if nothing is."""
        reference = self.entry.declared.spec.target.service_ref if self.entry.declared else None
        if reference is not None and self.part is None:
            return f"no valid LLMService {reference.name} in this namespace; create it or correct serviceRef"
        if self.part is not None and self.part.service.spec.target is not None:
            remedy = "run holdfast tune --url next to the engine" if self.engine else "set target.url to their address"
            return f"{self.part.spec.key.name} has a target, and serviceRef is for Holdfast's engines; {remedy} instead"
        if isinstance(self.engine, str):
            return self.engine
        if self.part is None or self.engine is not None or engines_of(self.part, None).count:
            return ""
        return f"no replica of {self.part.spec.key.name} is ready; see its condition Ready"

    @property
    def engines(self) -> Engines | None:
        """The engines that receive the load."""
        engine = self.engine
        return self._as_now(engine.accelerator if isinstance(engine, OwnEngine) else None)

    def moved(self, before: Engines) -> str:
        """What has changed about the engines since."""
        return benchmark_capacity.moved(before, self._as_now(before.accelerator if before.own else None))

    def price_of(self, engines: Engines | None) -> float | None:
        """Dollars per hour of one replica, from the service's present spec; None if it has no price."""
        if self.part is None or engines is None:
            return None
        option = self.part.spec.accelerator(engines.accelerator)
        return None if option is None else option.cost_per_replica_hour

    def _as_now(self, own: str | None) -> Engines | None:
        """The serving replicas, or the run's own engine on an accelerator, from the service's present spec."""
        if self.part is None or self.of is None:
            return None
        return engines_of(self.part, self.of.slo) if own is None else own_engine(self.part, own, self.of.slo)


class Benchmarks:
    """All dependencies are constructor arguments; the only persistent state is status."""

    def __init__(
        self, api: ApiPort, settings: RenderSettings, telemetry: BenchmarkTelemetry, may_write: Callable[[], bool]
    ) -> None:
        self._api = WhileLeading(api, may_write)
        self._settings = settings
        self._telemetry = telemetry
        self._applier = Applier(self._api)
        self._written: dict[ServiceKey, tuple[str, Mapping[str, Any]]] = {}
        self._words: dict[ServiceKey, str] = {}
        self._looked_at: dict[ServiceKey, float] = {}
        self._loaded_at: dict[str, float] = {}

    def results(self, entries: Sequence[Benchmark]) -> dict[str, list[Measured]]:
        """Return the measured capacities by namespace: results never size services of another namespace."""
        found: dict[str, list[Measured]] = {}
        for entry in entries:
            measured = measured_by(entry.key, self._status(entry))
            if measured is not None:
                found.setdefault(entry.key.namespace, []).append(measured)
        return found

    async def tell_use(
        self,
        entries: Sequence[Benchmark],
        services: Sequence[ServiceParts],
        pictured: Sequence[ServiceSnapshot],
        decisions: Sequence[Decision],
        now: float,
    ) -> None:
        """Write for each result whether sizing uses it, if that has changed; runs before a tick acts on results."""
        statuses = {entry.key: self._status(entry) for entry in entries}
        uses = benchmark_use.uses(self.results(entries), statuses, services, pictured, decisions)
        async with self._in_time():
            for entry in entries:
                if entry.key not in uses:
                    continue
                body = benchmark_report.used(entry, statuses[entry.key], uses[entry.key], now)
                if body is not None:
                    await self._guarded(entry, self._write(entry, body))

    async def act(self, entries: Sequence[Benchmark], services: Sequence[ServiceParts], now: float) -> None:
        """Advance every benchmark by one step; a failure of one does not affect another."""
        self._forget_but({entry.key for entry in entries})
        self._loaded_at = {url: at for url, at in self._loaded_at.items() if self._echoes(url, now)}
        waiting = [entry for entry in entries if not self._is_at_rest(entry)]
        if not waiting:
            return
        cases = list(self._cases(waiting, {part.spec.key: part for part in services}))
        busy = {case.of.url for case in cases if case.of and case.known.phase is Phase.RUNNING}
        async with self._in_time():
            for case in sorted(cases, key=self._turn):
                self._looked_at[case.entry.key] = now
                await self._guarded(case.entry, self._one(case, busy, now))

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_ACT_SECONDS):
                yield
        except TimeoutError:
            self._telemetry.error("act")
            _LOG.warning(
                "not all benchmarks were checked in this tick because the API server is slow; "
                "the rest follows in the next"
            )

    def _forget_but(self, keys: Set[ServiceKey]) -> None:
        memories: tuple[dict[ServiceKey, Any], ...] = (self._written, self._words, self._looked_at)
        for remembered_by_key in memories:
            for gone in remembered_by_key.keys() - keys:
                del remembered_by_key[gone]

    def _turn(self, case: _Case) -> tuple[bool, float]:
        """Order: running first, then by age; benchmarks that the last tick had no time for come first."""
        return case.known.phase is not Phase.RUNNING, self._looked_at.get(case.entry.key, -math.inf)

    def _cases(self, entries: Iterable[Benchmark], parts: Mapping[ServiceKey, ServiceParts]) -> Iterator[_Case]:
        for entry in entries:
            try:
                yield self._case(entry, parts)
            except Exception:  # an invalid benchmark must not abort the tick
                self._telemetry.error("act")
                _LOG.exception("%s: reading the benchmark failed", entry.key)

    def _is_at_rest(self, entry: Benchmark) -> bool:
        status = self._status(entry)
        if entry.declared is None:
            return status.get("observedGeneration") == entry.generation
        return benchmark_progress.is_at_rest(remembered(status), entry.run) and (
            status.get("observedGeneration") == entry.generation
        )

    def _status(self, entry: Benchmark) -> Mapping[str, Any]:
        """Its status by our own last write, which the watch may not show yet."""
        uid, written = self._written.get(entry.key, ("", entry.status))
        return written if uid == entry.uid else entry.status

    def _case(self, entry: Benchmark, parts: Mapping[ServiceKey, ServiceParts]) -> _Case:
        declared, part = entry.declared, None
        if declared is None:
            return _Case(entry, self._status(entry), None, None)
        reference = declared.spec.target.service_ref
        if reference is not None:
            part = parts.get(ServiceKey(entry.key.namespace, reference.name))
            if part is None:
                return _Case(entry, self._status(entry), None, None)
        return _Case(entry, self._status(entry), measurand(declared, part.service if part else None), part)

    async def _guarded(self, entry: Benchmark, work: Awaitable[None]) -> None:
        try:
            await work
        except NotLeading as held_back:
            _LOG.warning("%s: not written because leadership ended: %s", entry.key, held_back)
        except (ApiError, ApiUnreachable) as error:
            if isinstance(error, ApiError) and error.namespace_ends:
                return
            self._telemetry.error("act")
            _LOG.warning("%s: %s", entry.key, error)
        except TimeoutError:
            raise
        except Exception:
            self._telemetry.error("act")
            _LOG.exception("%s: processing the benchmark failed", entry.key)

    async def _one(self, case: _Case, busy: set[str], now: float) -> None:
        entry, known = case.entry, case.known
        if benchmark_progress.is_outdated(known, entry.run):
            await acting.remove_job(self._api, entry.key.namespace, str(case.status.get("job", "")), entry.uid)
            self._load_ends(case, now)
        if entry.declared is None:
            step = Progress(Phase.FAILED, Reason.INVALID, entry.problem)
            await self._tell(case, step, benchmark_report.invalid(entry, case.status, step, now), now)
            return
        if known.phase is Phase.RUNNING and known.run == entry.run:
            await self._follow(case, now)
        elif not known.phase.ended or known.run != entry.run:
            await self._begin(case, busy, now)
        else:  # an edit that does not affect the run
            await self._write(entry, {**case.status, "observedGeneration": entry.generation})

    async def _begin(self, case: _Case, busy: set[str], now: float) -> None:
        entry, of = case.entry, case.of
        obstacle = await self._obstacle(case, busy, now)
        if obstacle is not None or of is None or entry.declared is None:
            step = obstacle or waiting(Reason.TARGET_NOT_READY, "the service does not exist")
            await self._tell(case, step, benchmark_report.waiting(entry, case.status, step, now), now)
            return
        engine = case.engine if isinstance(case.engine, OwnEngine) else None
        engines = case.engines
        manifest = job(entry.declared, of, self._settings, engine)
        try:
            found = await acting.create_job(self._api, manifest)
        except ApiError as error:
            if error.namespace_ends or error.status == 409:
                raise
            step = waiting(Reason.APPLY_FAILED, f"the API server rejected the Job: {error.message}")
            await self._tell(case, step, benchmark_report.waiting(entry, case.status, step, now), now)
            return
        busy.add(of.url)
        self._words.pop(entry.key, None)
        step, name = benchmark_progress.look(JobSeen(found), of.name, engines, ""), str(manifest["metadata"]["name"])
        if step.phase is Phase.PENDING:
            await self._tell(case, step, benchmark_report.waiting(entry, case.status, step, now), now)
            return
        await self._tell(case, step, benchmark_report.begun(case.entry, case.status, step, of, engines, name, now), now)

    async def _obstacle(self, case: _Case, busy: set[str], now: float) -> Progress | None:
        """Why a run cannot begin now; checks that need the API server come last."""
        entry, declared = case.entry, case.entry.declared
        if declared is None:
            return waiting(Reason.INVALID, entry.problem)
        if not self._settings.activator_image:
            return waiting(Reason.NO_IMAGE, "the operator does not know its own image; set --activator-image")
        lacks = case.lacks
        if lacks:
            return waiting(Reason.TARGET_NOT_READY, lacks)
        if case.of is not None and case.of.url in busy:
            return waiting(Reason.QUEUED, f"waits until another benchmark of {case.of.name} ends")
        if case.of is not None and declared.spec.sweep is not None and self._echoes(case.of.url, now):
            return waiting(
                Reason.QUEUED,
                f"waits until the load of the previous benchmark of {case.of.name} is no longer in its metrics",
            )
        for recording in declared.spec.recordings:
            wanted = recording.config_map_key_ref
            missing = await acting.missing_key(self._api, entry.key.namespace, wanted.name, wanted.key)
            if missing:
                return waiting(Reason.INVALID, missing)
        return None

    def _load_ends(self, case: _Case, now: float) -> None:
        if case.of is not None and case.part is not None and case.engine is None:
            self._loaded_at[case.of.url] = now

    def _echoes(self, url: str, now: float) -> bool:
        """Whether a sweep would mistake the load of another benchmark for user traffic."""
        return 0.0 <= now - self._loaded_at.get(url, -math.inf) < _ECHO_SECONDS

    async def _follow(self, case: _Case, now: float) -> None:
        """Read the Job of a running benchmark, and check that its engines are unchanged."""
        entry, declared = case.entry, case.entry.declared
        assert declared is not None
        found = await acting.read_job(self._api, entry.key.namespace, str(case.status.get("job", "")), entry.run)
        seen = JobSeen(JobState.ABSENT) if found is None else job_seen(*found, entry.uid)
        if seen.state is not JobState.ACTIVE:  # of a pod that is gone, the last known state
            seen = replace(seen, last_words=seen.last_words or self._words.get(entry.key, ""))
        self._words[entry.key] = seen.last_words
        engines, moved = engines_remembered(case.status, own=declared.spec.tune is not None)
        unseen = case.part is None and seen.state is JobState.ACTIVE  # an invalid edit may be undone
        if engines is not None and not moved and not unseen:
            moved = case.moved(engines)
        if seen.state is JobState.BROKEN:  # it would hold its GPUs until the time limit
            await acting.remove_job(self._api, entry.key.namespace, str(case.status.get("job", "")), entry.uid)
        target = str(case.status.get("target", ""))
        step = benchmark_progress.look(seen, target, engines, declared.spec.timeout)
        if step.phase is Phase.RUNNING:
            status = benchmark_report.running(entry, case.status, step, engines, moved, seen.last_words, now)
        elif step.summary is None:
            self._load_ends(case, now)
            status = benchmark_report.ended(entry, case.status, step, now)
        else:
            self._load_ends(case, now)
            step = replace(
                step, summary=benchmark_capacity.completed(step.summary, engines, moved, case.price_of(engines))
            )
            lost = await self._keep(entry, step)
            step = replace(step, message="; ".join(filter(None, (step.message, lost))))
            status = benchmark_report.measured(entry, case.status, step, case.of, case.part, engines, moved, now)
            step = replace(step, message=status["conditions"][0]["message"])
            if lost:
                del status["configMap"]
        await self._tell(case, step, status, now)

    async def _keep(self, entry: Benchmark, step: Progress) -> str:
        """Write the result as a ConfigMap, or return why not: status has the result in any case."""
        assert entry.declared is not None
        assert step.summary is not None
        manifest = config_map(entry.declared, step.summary)
        name = manifest["metadata"]["name"]
        try:
            await self._applier.apply(manifest)
        except ForeignObject:
            return (
                f"result not stored: ConfigMap {name} exists and does not belong to this benchmark; rename or delete it"
            )
        except ApiError as error:
            if error.status not in _REFUSALS or error.namespace_ends:
                raise
            return f"result not stored in ConfigMap {name}: {error.message}"
        return ""

    async def _tell(self, case: _Case, step: Progress, status: dict[str, Any], now: float) -> None:
        """Write status if it changed, after an Event for each phase change. A failed Event is posted at the next try,
        because status still has the previous phase."""
        if _reason(case.status) != str(step.reason) or case.known.phase is not step.phase:
            await self._announce(case, step, now)
        await self._write(case.entry, status)

    async def _announce(self, case: _Case, step: Progress, now: float) -> None:
        """Post an Event for a phase change; on the service too, because of the load."""
        entry, warning, reason, turn = case.entry, step.phase is Phase.FAILED, str(step.reason), repr(case.status)
        _LOG.info("%s: %s/%s: %s", entry.key, step.phase, reason, step.message)
        ends_load = step.phase in _ENDED and case.known.phase is Phase.RUNNING
        if case.part is not None and (step.phase is Phase.RUNNING or ends_load):
            of, message = case.part.spec, f"benchmark {entry.key.name}: {step.message}"
            await acting.post_on_service(self._api, of.key, of.uid, reason, message, now=now, turn=turn)
        await acting.post(self._api, entry.key, entry.uid, reason, step.message, warning=warning, now=now, turn=turn)

    async def _write(self, entry: Benchmark, status: dict[str, Any]) -> None:
        if status == self._status(entry):
            return
        if await acting.write_status(self._api, entry.key, entry.uid, status):
            self._written[entry.key] = (entry.uid, status)


def _reason(status: Mapping[str, Any]) -> str:
    conditions = (each for each in status.get("conditions") or () if each.get("type") == COMPLETE)
    return next((str(each.get("reason")) for each in conditions), "")
