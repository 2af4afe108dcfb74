"""Carries out decisions: reads the object once more, writes manifests and sizes, and publishes the status last."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

from holdfast.act import scale
from holdfast.act.api import ApiError, ApiPort, ApiUnreachable, NotLeading, WhileLeading
from holdfast.act.apply import delete
from holdfast.act.discovery import has_inference_pools, has_pod_monitors
from holdfast.act.resources import live_path, pod_path, service_path
from holdfast.api import group_set, inference_pool
from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.api.quantities import counted
from holdfast.api.reasons import Reason
from holdfast.control.limits.live_limits import UNSEEN, LiveLimits
from holdfast.control.objects.objects import Objects, Work
from holdfast.control.objects.plan import Plan, fingerprint, plan
from holdfast.control.objects.router_problem import no_image
from holdfast.control.status import decision_record
from holdfast.control.status.decision_record import Records
from holdfast.control.status.status_publisher import StatusPublisher
from holdfast.control.writes.changed_warnings import ChangedWarnings
from holdfast.control.writes.claims import Claims
from holdfast.control.writes.loading_pods import LoadingPods
from holdfast.control.writes.size_writes import SizeWrites
from holdfast.control.writes.unchanged import SettledService
from holdfast.control.writes.write_backoff import WriteBackoff
from holdfast.domain.cluster import ClusterProblem, NodeOffer, Workload
from holdfast.domain.decision import Action, Decision, PlacementTarget, Restart
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import Traffic
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.observe.signals.prometheus import MetricsSource
from holdfast.render import RenderSettings
from holdfast.render.admission import rollout_tokens
from holdfast.render.engine_limits import engine_limits
from holdfast.rendered.context import Deployed

_LOG = logging.getLogger(__name__)
_CONCURRENCY = 16
_DISCOVERY_SECONDS = 300.0
# Time limit per tick; later ticks carry out the rest. A thousand new services take minutes, and meanwhile the load of
# running services must still be observed.
_ACT_SECONDS = 10.0
_HOLD_SECONDS = 2.5  # time limit if no size changes: most status writes of a thousand services can wait for a tick
_PAUSE_AFTER = 50  # unchanged services: each takes some ten microseconds
_URGENCY = {Action.HOLD: 1, Action.CREATE: 2}  # lower value first: sizes of running services precede both


class ActTelemetry(Protocol):
    """Metrics of acting."""

    def pictured(
        self,
        services: Sequence[ServiceParts],
        decisions: Sequence[Decision],
        invalid: Sequence[Invalid],
        nodes: Sequence[NodeOffer],
        traffic: Mapping[ServiceKey, Traffic],
    ) -> None: ...

    def decided(self, decision: Decision) -> None: ...

    def error(self, phase: str) -> None: ...


class Actuator:
    """Writes for all services, each independently: a failure of one does not affect another."""

    def __init__(
        self,
        api: ApiPort,
        metrics: MetricsSource,
        telemetry: ActTelemetry,
        render_settings: RenderSettings,
        may_write: Callable[[], bool],
        scrape_seconds: float = 15.0,
    ) -> None:
        self._api = WhileLeading(api, may_write)
        self._metrics = metrics
        self._telemetry = telemetry
        self._may_write = may_write
        self._objects = Objects(self._api, render_settings)
        self._live = LiveLimits(self._api, engine_limits, scrape_seconds)
        self._claims = Claims(self._api)
        self._loading = LoadingPods(self._api, render_settings.startup_seconds_of)
        self._teller = StatusPublisher(self._api, platform_assigns_ids=render_settings.platform_assigns_ids)
        self._uids: dict[ServiceKey, str] = {}
        self._rests: dict[ServiceKey, SettledService] = {}
        self._refusals = WriteBackoff()
        self._sizes = SizeWrites(self._api)
        self._problems, self._errors = ChangedWarnings(_LOG), ChangedWarnings(_LOG)
        self._limits: dict[tuple[str, str], tuple[object, int | None]] = {}
        self._reached: dict[ServiceKey, float] = {}
        self._pod_monitor = self._inference_pools = False
        self._discovered_at: float | None = None

    def problems(self, part: ServiceParts) -> tuple[ClusterProblem, ...]:
        """Return the problems of the last writes, volumes and APIs of a service; the next conditions name them."""
        router = no_image(part, has_router=self._objects.has_router(part))
        return self._objects.problems(part) + self._claims.problems(part) + self._absent_api(part) + router

    def set_back(self, part: ServiceParts) -> tuple[str, ...]:
        """Return the accelerators whose size somebody else changed since it was written; each once a write."""
        return self._sizes.set_back(part)

    def holding(self, key: ServiceKey) -> bool:
        """Return whether clients of a service are routed to its activator now."""
        return self._objects.holding(key)

    async def act(
        self,
        services: Sequence[ServiceParts],
        decisions: Sequence[Decision],
        invalid: Sequence[Invalid],
        nodes: Sequence[NodeOffer],
        now: float,
        traffic: Mapping[ServiceKey, Traffic] = MappingProxyType({}),
        records: Records = decision_record.nothing,
    ) -> None:
        """Carry out the decisions of one tick, the most urgent first, within the time limit."""
        self._telemetry.pictured(services, decisions, invalid, nodes, traffic)
        if not await self._discovered(now):
            return  # what rests on an optional API would be deleted, and nothing can be written either
        self._forget_all_but(
            {part.spec.key: part.spec.uid for part in services} | {entry.key: entry.uid for entry in invalid}
        )
        parts, inventory = {part.spec.key: part for part in services}, Inventory(tuple(nodes))
        self._teller.see(nodes)
        shrinking = [decision.key for decision in decisions if decision.verdict.action is Action.SCALE_DOWN]
        running = await self._metrics.running_by_pod(shrinking, now) if shrinking else {}
        owned = [part for part in services if part.adoption is None]
        for part in owned:
            self._look(part, traffic.get(part.spec.key, UNSEEN), now)
        # With equal urgency the longest waiting comes first: so every service gets a turn, even with a slow API server.
        turn = {d.key: (_URGENCY.get(d.verdict.action, 0), self._reached.get(d.key, -math.inf)) for d in decisions}
        started_at = asyncio.get_running_loop().time()
        until, holding_until = started_at + _ACT_SECONDS, started_at + _HOLD_SECONDS

        def work() -> Iterator[Coroutine[None, None, None]]:
            for entry in invalid:
                yield self._guarded(self._teller.tell_invalid(entry, now), entry.key, now, until)
            for index, d in enumerate(sorted(decisions, key=lambda d: turn[d.key])):
                if self._stays_as_it_is(parts[d.key], d, inventory, now):
                    if index % _PAUSE_AFTER == 0:
                        yield asyncio.sleep(0.0)  # thousands of unchanged services would block the event loop
                    continue
                one = self._one(parts[d.key], d, inventory, running.get(d.key, {}), now, records)
                yield self._guarded(one, d.key, now, holding_until if d.verdict.action is Action.HOLD else until)

        waiting = work()
        await asyncio.gather(self._write_pods(owned, now), *(_in_turn(waiting) for _ in range(_CONCURRENCY)))

    def _look(self, part: ServiceParts, traffic: Traffic, now: float) -> None:
        try:
            self._live.look(part, traffic, now)
        except Exception:
            self._telemetry.error("act")
            _LOG.exception(
                ("%s: computing its batching limits failed; engines continue with the current ones"), part.spec.key
            )

    async def _write_pods(self, services: Sequence[ServiceParts], now: float) -> None:
        """Protect loading pods and write limits to engines, concurrently with the rest, also without a decision."""
        try:
            async with asyncio.timeout(_ACT_SECONDS):
                await self._loading.write(services, now)
                await self._live.write(services, now)
                await self._claims.look(services, now)
        except (NotLeading, ApiUnreachable, TimeoutError) as stopped:
            self._telemetry.error("act")
            _LOG.warning(
                "not all engines got their limits in this tick, the rest follows in the next: %s",
                stopped or "slow answers",
            )

    async def _guarded(self, work: Coroutine[None, None, None], key: ServiceKey, now: float, until: float) -> None:
        if not self._may_write() or asyncio.get_running_loop().time() > until:
            work.close()
            return
        self._reached[key] = now
        try:
            await work
            self._errors.warn(key, ())
        except NotLeading as held_back:
            _LOG.warning("%s: not written because leadership ended: %s", key, held_back)
        except (ApiError, ApiUnreachable, scale.StaleDecision) as error:
            if isinstance(error, ApiError) and error.namespace_ends:
                return
            self._telemetry.error("act")
            if not (isinstance(error, ApiError) and self._problems.has(key, error.message)):
                self._errors.warn(key, [ClusterProblem(Reason.APPLY_FAILED, str(error))])
        except Exception:
            self._telemetry.error("act")
            _LOG.exception("%s: applying the decision failed", key)

    async def _one(
        self,
        part: ServiceParts,
        decision: Decision,
        inventory: Inventory,
        running: Mapping[str, float],
        now: float,
        records: Records,
    ) -> None:
        seen = self._seen(part, inventory)
        changes = plan(
            part,
            decision,
            inventory,
            pod_monitor=self._pod_monitor,
            inference_pools=self._inference_pools,
            admission=self._admission,
            limits=self._live.wanted(part),
            activator=self._objects.has_activator(part),
            router=self._objects.has_router(part),
        )
        # The decision and its reason are published in any case, and the write is retried.
        failure: Exception | None = None
        try:
            made = await self._carry_out(part, decision, changes, running, now)
        except (ApiError, scale.StaleDecision) as error:
            failure, made = error, False
        except ApiUnreachable as error:
            failure, made = error, True  # unknown; the next tick may find the write done and decide no change
        if made:
            self._telemetry.decided(decision)
        self._problems.warn(decision.key, self._objects.problems(part))
        await self._teller.tell_corrected(part, self._objects.corrected(part, now), now)
        digests = self._objects.digests(part)
        due_at = await self._teller.tell(part, decision, changes, self._live.applied(part), now, records, digests)
        if failure is not None:
            raise failure
        if due_at > now and not changes.moves and self._objects.is_settled(part, changes):
            self._rests[decision.key] = SettledService(decision, seen, self._teller.written(part), now, due_at)

    def _stays_as_it_is(self, part: ServiceParts, decision: Decision, inventory: Inventory, now: float) -> bool:
        """Whether there is nothing to do; an error in this check is reported when the service is acted on."""
        try:
            rests = self._is_at_rest(part, decision, self._seen(part, inventory), now)
        except Exception:
            return False
        if rests:
            self._reached[decision.key] = now
            self._telemetry.decided(decision)
        return rests

    def _seen(self, part: ServiceParts, inventory: Inventory) -> tuple[object, ...]:
        """Everything that writes depend on, except the decision."""
        apis = (self._pod_monitor, self._inference_pools)
        return (part, self._live.wanted(part), self._live.applied(part), _rooms(part, inventory), apis)

    def _is_at_rest(self, part: ServiceParts, decision: Decision, seen: tuple[object, ...], now: float) -> bool:
        """Whether there is nothing to do; if there is, the shortcut must be established anew."""
        rest = self._rests.pop(decision.key, None)
        if rest is None or not rest.holds(part, decision, seen, self._teller.written(part), now):
            return False
        self._rests[decision.key] = rest if rest.decision is decision else replace(rest, decision=decision)
        return True

    async def _carry_out(
        self, part: ServiceParts, decision: Decision, changes: Plan, running: Mapping[str, float], now: float
    ) -> bool:
        """Write all objects except those refused just now; return whether all Deployments to scale exist."""
        key, what = decision.key, (fingerprint(part, changes), part.live, changes)
        work = self._objects.work(part, changes, now)
        if not self._refusals.is_due(key, what, now):
            return False
        if (changes.moves or work) and not await self._still_wanted(decision):
            return False
        try:
            return await self._write(part, decision, changes, work, running, now)
        finally:
            if any(problem.reason is Reason.APPLY_FAILED for problem in self._objects.problems(part)):
                self._refusals.refused(key, what, now)
            else:
                self._refusals.forget([key])

    async def _write(
        self,
        part: ServiceParts,
        decision: Decision,
        changes: Plan,
        work: Work,
        running: Mapping[str, float],
        now: float,
    ) -> bool:
        """Apply, shrink, create, grow, delete; after all of it, raises the error that a size was refused with."""
        births = await self._objects.apply(part, work, now)
        if changes.shrink:
            births = await self._objects.acceptable(part, births, changes.births)
        accepted = {manifest["metadata"]["name"] for manifest in births}
        refused: list[tuple[PlacementTarget, ApiError | scale.StaleDecision]] = []
        if all(name in accepted or self._objects.was_created(part, name, now) for name in changes.create):
            refused += await self._resize(part, changes.shrink, running)
            unmoved = [target for target, _ in refused]
        else:
            unmoved = [target for _, target in changes.shrink]  # no replica is removed for one that cannot be created
        coming = changes.reduced_by(unmoved)
        await self._objects.create(part, births, coming.births, now)
        refused += await self._resize(part, coming.grow, running)
        await self._objects.clear_away(part, work, now)
        if decision.restart and changes.restart:
            await self._restart(part, decision.restart, changes.restart[1], now)
        for name, kind in changes.delete:
            shown = part.shown(kind, name)
            await delete(self._api, live_path(decision.key.namespace, kind, name), shown.uid if shown else "")
        if refused:
            raise refused[0][1]
        return all(self._objects.was_created(part, name, now) for name in changes.create)

    async def _resize(
        self, part: ServiceParts, sizes: Iterable[tuple[Workload, PlacementTarget]], running: Mapping[str, float]
    ) -> list[tuple[PlacementTarget, ApiError | scale.StaleDecision]]:
        """Set the sizes of workloads, each independently; return the unchanged ones with the error."""
        failed: list[tuple[PlacementTarget, ApiError | scale.StaleDecision]] = []
        for workload, target in sizes:
            try:
                await self._scale(part, workload, target, running)
            except (ApiError, scale.StaleDecision) as error:
                failed.append((target, error))
        return failed

    async def _restart(self, part: ServiceParts, restart: Restart, uid: str, now: float) -> None:
        """Delete the leader of a group: its other pods go with it, and all are made anew."""
        try:
            made = await delete(self._api, pod_path(part.spec.key.namespace, restart.leader), uid)
        except ApiError as error:
            self._objects.refused(part, f"pod {restart.leader} was not deleted: {error.message}")
            raise
        if made:
            await self._teller.tell_restart(part, restart, uid, now)

    async def _scale(
        self, part: ServiceParts, workload: Workload, target: PlacementTarget, running: Mapping[str, float]
    ) -> None:
        """Set the size of one workload; a refusal by a rule of the cluster appears in the next conditions."""
        order = scale.removal_order(target.remove_first, running, target.lost)
        priced = part.adoption.priced if part.adoption else frozenset[str]()
        try:
            await self._sizes.write(part.spec.key, workload, target, [pod for pod in order if pod not in priced])
        except ApiError as error:
            if error.status not in (404, 409) and not error.namespace_ends:  # for these the next tick sees the cause
                size = counted(target.replicas, "replica")
                message = f"{workload} was not set to {size}: {error.message}"
                self._objects.refused(part, message)
            raise

    def _admission(self, service: LLMService, accelerator: Accelerator, deployed: Deployed | None) -> int | None:
        """Return the admission limit of a rollout that starts now, computed once per generation."""
        key, asked = (service.metadata.uid, accelerator.name), (service.metadata.generation, service.spec.batching)
        known = self._limits.get(key)
        if known is None or known[0] != asked:
            known = self._limits[key] = (asked, rollout_tokens(service, accelerator, deployed))
        return known[1]

    def _absent_api(self, part: ServiceParts) -> tuple[ClusterProblem, ...]:
        known, spec = self._discovered_at is not None, part.service.spec
        pools = inference_pool.api_missing(spec.inference_pool) if known and not self._inference_pools else ""
        groups = group_set.api_missing(spec.accelerators) if group_set.KIND not in part.watched else ""
        return tuple(ClusterProblem(Reason.API_MISSING, told) for told in (pools, groups) if told)

    async def _discovered(self, now: float) -> bool:
        """Check now and then which optional APIs the cluster has; False until that is known."""
        if self._discovered_at is not None and now - self._discovered_at < _DISCOVERY_SECONDS:
            return True
        try:
            self._pod_monitor = await has_pod_monitors(self._api)
            self._inference_pools = await has_inference_pools(self._api)
        except ApiUnreachable:
            return self._discovered_at is not None
        self._discovered_at = now
        return True

    async def _still_wanted(self, decision: Decision) -> bool:
        """Read the object once more just before writing: it may be gone, edited or being deleted."""
        try:
            meta = (await self._api.request("GET", service_path(decision.key)))["metadata"]
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return meta.get("generation") == decision.generation and "deletionTimestamp" not in meta

    def _forget_all_but(self, uids: Mapping[ServiceKey, str]) -> None:
        """Drop the state of deleted services, even if a new service has the same name."""
        gone = {key: uid for key, uid in self._uids.items() if uids.get(key) != uid}
        self._uids = dict(uids)
        self._objects.forget_all_but(uids)
        self._live.forget_all_but(uids)
        self._teller.forget(gone)
        for state in (self._refusals, self._sizes, self._problems, self._errors):
            state.forget(gone)
        for key in gone:
            self._rests.pop(key, None)
            self._reached.pop(key, None)
        for limit in [limit for limit in self._limits if limit[0] in gone.values()]:
            del self._limits[limit]


async def _in_turn(waiting: Iterable[Coroutine[None, None, None]]) -> None:
    """Worker: run the next item until none is left. Several workers run concurrently instead of a thousand tasks.

    Work may end without having waited: without a pause, much of it would block the event loop.
    """
    for work in waiting:
        await work
        await asyncio.sleep(0.0)


def _rooms(part: ServiceParts, inventory: Inventory) -> tuple[bool, ...]:
    return tuple(inventory.room(option).free_replicas > 0 for option in part.spec.accelerators)
