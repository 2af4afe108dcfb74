"""Carries decisions out: the object is looked at again, then manifests, sizes, status and Events, in that order."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.act import events, scale
from holdfast.act.api import ApiError, ApiPort, ApiUnreachable
from holdfast.act.apply import Applier, ForeignObject
from holdfast.act.resources import deployment_path, object_path, service_path
from holdfast.act.status import StatusWriter
from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.api.reasons import Reason
from holdfast.api.status import BatchingStatus
from holdfast.control.explanation import explained
from holdfast.control.plan import Plan, fingerprint, plan
from holdfast.control.report import condition_news, invalid_status, iso, status_of
from holdfast.domain.cluster import ClusterProblem, NodeOffer
from holdfast.domain.decision import Action, Decision
from holdfast.domain.service import ServiceKey
from holdfast.observe.cluster import Invalid, ServiceParts
from holdfast.observe.prometheus import MetricsSource
from holdfast.policy.inventory import Inventory
from holdfast.render import RenderSettings, deployment_name, remarks, render
from holdfast.render.admission import admission_tokens

_LOG = logging.getLogger(__name__)
_CONCURRENCY = 16
_REPEAT_EVENT_AFTER_SECONDS = 60.0
_WATCH_LAG_SECONDS = 10.0
_DISCOVERY_SECONDS = 300.0
_POD_MONITORS = "/apis/monitoring.coreos.com/v1"


class ActTelemetry(Protocol):
    """What is told about acting."""

    def decided(self, decision: Decision) -> None: ...

    def error(self, phase: str) -> None: ...


class Actuator:
    """Writes for all services, each on its own: one that fails leaves the others alone."""

    def __init__(
        self,
        api: ApiPort,
        metrics: MetricsSource,
        telemetry: ActTelemetry,
        render_settings: RenderSettings,
        may_write: Callable[[], bool],
    ) -> None:
        self._api = api
        self._metrics = metrics
        self._telemetry = telemetry
        self._render_settings = render_settings
        self._may_write = may_write
        self._applier = Applier(api)
        self._status = StatusWriter(api)
        self._problems: dict[ServiceKey, tuple[ClusterProblem, ...]] = {}
        self._told: dict[ServiceKey, tuple[object, float]] = {}
        self._rendered: dict[ServiceKey, object] = {}
        self._paths: dict[ServiceKey, set[str]] = {}
        self._created: dict[tuple[ServiceKey, str], float] = {}
        self._limits: dict[tuple[str, int, str], int | None] = {}
        self._pod_monitor = False
        self._discovered_at: float | None = None
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    def problems(self, key: ServiceKey) -> tuple[ClusterProblem, ...]:
        """Return what stood in the way of the last writes for a service; the next decision's conditions name it."""
        return self._problems.get(key, ())

    async def act(
        self,
        services: Sequence[ServiceParts],
        decisions: Sequence[Decision],
        invalid: Sequence[Invalid],
        nodes: Sequence[NodeOffer],
        now: float,
    ) -> None:
        """Carry out all decisions of one tick."""
        await self._discover(now)
        self._forget_all_but({part.spec.key for part in services} | {entry.key for entry in invalid})
        parts, inventory = {part.spec.key: part for part in services}, Inventory(tuple(nodes))
        shrinking = [decision.key for decision in decisions if decision.verdict.action is Action.SCALE_DOWN]
        running = await self._metrics.running_by_pod(shrinking, now) if shrinking else {}
        await asyncio.gather(
            *(
                self._guarded(self._one(parts[d.key], d, inventory, running.get(d.key, {}), now), d.key)
                for d in decisions
            ),
            *(self._guarded(self._report_invalid(entry, now), entry.key) for entry in invalid),
        )

    async def _guarded(self, work: Awaitable[None], key: ServiceKey) -> None:
        async with self._slots:
            try:
                await work
            except (ApiError, ApiUnreachable, scale.StaleDecision) as error:
                self._telemetry.error("act")
                _LOG.warning("%s: %s", key, error)
            except Exception:
                self._telemetry.error("act")
                _LOG.exception("%s: acting failed", key)

    async def _one(
        self, part: ServiceParts, decision: Decision, inventory: Inventory, running: Mapping[str, float], now: float
    ) -> None:
        if not self._may_write():
            return
        changes = plan(part, decision, inventory, pod_monitor=self._pod_monitor, admission=self._admission)
        try:
            await self._carry_out(part, decision, changes, running, now)
        finally:
            await self._tell(part, decision, changes, now)

    async def _carry_out(
        self, part: ServiceParts, decision: Decision, changes: Plan, running: Mapping[str, float], now: float
    ) -> None:
        if changes.moves and not await self._still_wanted(decision):
            return
        await self._apply_all(part, changes, now)
        for deployment, target in changes.scale:
            victims = scale.removal_order(target.remove_first, running)
            if victims:
                await scale.prefer_removal(self._api, decision.key.namespace, victims)
            await scale.scale(
                self._api,
                decision.key.namespace,
                deployment,
                observed=target.observed_replicas,
                wanted=target.replicas,
            )
        for name in changes.delete:
            await self._applier.delete(deployment_path(decision.key.namespace, name))

    async def _apply_all(self, part: ServiceParts, changes: Plan, now: float) -> None:
        """Apply what the service should have; what is refused becomes a problem that the next decision names."""
        key, current = part.spec.key, fingerprint(part, changes)
        if self._rendered.get(key) == current and not changes.create:
            return
        seen = {
            deployment_name(key.name, name): facts.deployed.template_json
            for name, facts in changes.context.accelerators
            if facts.deployed
        }
        problems = []
        paths = set()
        for manifest in render(part.service, changes.accelerators, self._render_settings, changes.context):
            paths.add(object_path(manifest))
            try:
                await self._apply(key, manifest, changes, seen, now)
            except ForeignObject as conflict:
                problems.append(ClusterProblem(Reason.NAME_CONFLICT, conflict.message))
            except ApiError as error:
                kind, name = manifest["kind"], manifest["metadata"]["name"]
                problems.append(ClusterProblem(Reason.APPLY_FAILED, f"{kind} {name} was refused: {error.message}"))
        self._problems[key] = tuple(problems)
        await self._remove_unwanted(key, paths)
        if not problems:
            self._rendered[key] = current

    async def _remove_unwanted(self, key: ServiceKey, paths: set[str]) -> None:
        """Delete what the service had and no longer should, such as a PodDisruptionBudget at one replica.

        Deployments go by the plan only; pod files stay while a ReplicaSet may mount them.
        """
        for path in self._paths.get(key, set()) - paths:
            if "/deployments/" not in path and "/configmaps/" not in path:
                await self._applier.delete(path)
        self._paths[key] = paths

    async def _apply(
        self, key: ServiceKey, manifest: Mapping[str, Any], changes: Plan, seen: Mapping[str, str], now: float
    ) -> None:
        name = manifest["metadata"]["name"]
        if manifest["kind"] != "Deployment" or name not in changes.create:
            await self._applier.apply(manifest, seen.get(name, "") if manifest["kind"] == "Deployment" else "")
        elif now - self._created.get((key, name), -math.inf) >= _WATCH_LAG_SECONDS:
            # The watch may show our own creation a tick late: it must not be created, or sized, again.
            await self._applier.create_deployment(manifest, changes.create[name])
            self._created[key, name] = now

    def _admission(self, service: LLMService, accelerator: Accelerator) -> int | None:
        """Return the admission limit of a rollout that starts now; a millisecond of arithmetic, once a generation."""
        key = (service.metadata.uid, service.metadata.generation, accelerator.name)
        if key not in self._limits:
            self._limits[key] = admission_tokens(service, accelerator)
        return self._limits[key]

    async def _discover(self, now: float) -> None:
        """Look now and then whether the cluster knows PodMonitors."""
        if self._discovered_at is not None and now - self._discovered_at < _DISCOVERY_SECONDS:
            return
        try:
            found = await self._api.request("GET", _POD_MONITORS)
        except ApiUnreachable:
            return
        except ApiError:
            found = {}
        self._pod_monitor = any(item.get("name") == "podmonitors" for item in found.get("resources", ()))
        self._discovered_at = now

    async def _still_wanted(self, decision: Decision) -> bool:
        """Look at the object once more just before writing: it may be gone, edited or being deleted."""
        try:
            meta = (await self._api.request("GET", service_path(decision.key)))["metadata"]
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return meta.get("generation") == decision.generation and "deletionTimestamp" not in meta

    async def _tell(self, part: ServiceParts, decision: Decision, changes: Plan, now: float) -> None:
        old = self._status.last(decision.key, part.service.status)
        used = [target.accelerator for target in decision.verdict.targets if target.replicas]
        known = remarks(part.service, used, changes.context)
        new = status_of(part, decision, _batching(part, changes), old, now, known)
        self._telemetry.decided(decision)
        await self._status.write(decision.key, new, part.service.status, now)
        if self._is_new_change(decision, now):
            verdict = decision.verdict
            text = f"{verdict.action.value}: {verdict.message}"
            _LOG.info("%s: %s/%s: %s", decision.key, verdict.action.value, verdict.reason, verdict.message)
            whole = json.dumps(explained(verdict, decision, iso(now)).to_dict())
            await self._event(part, verdict.reason, text, warning=False, now=now, decision=whole)
        for condition in condition_news(old, new):
            warning = condition["status"] == "False"
            await self._event(part, condition["reason"], condition["message"], warning=warning, now=now)

    async def _event(
        self, part: ServiceParts, reason: str, message: str, *, warning: bool, now: float, decision: str = ""
    ) -> None:
        key, uid, word = part.spec.key, part.spec.uid, str(reason)
        body = events.event_body(key, uid, reason=word, message=message, warning=warning, now=now, decision=decision)
        await events.post_event(self._api, body)

    def _is_new_change(self, decision: Decision, now: float) -> bool:
        """Whether a change is decided for the first time: the watch may show our own write a tick late."""
        verdict = decision.verdict
        if verdict.action is Action.HOLD:
            return False
        what = (verdict.action, verdict.targets)
        last, at = self._told.get(decision.key, (None, 0.0))
        if what == last and now - at < _REPEAT_EVENT_AFTER_SECONDS:
            return False
        self._told[decision.key] = (what, now)
        return True

    async def _report_invalid(self, entry: Invalid, now: float) -> None:
        if not self._may_write():
            return
        old = self._status.last(entry.key, entry.status)
        await self._status.write(entry.key, invalid_status(entry, old, now), entry.status, now)

    def _forget_all_but(self, keys: set[ServiceKey]) -> None:
        self._status.forget_all_but(keys)
        tables: tuple[dict[ServiceKey, Any], ...] = (self._problems, self._told, self._rendered, self._paths)
        for table in tables:
            for key in table.keys() - keys:
                del table[key]
        for created in [entry for entry in self._created if entry[0] not in keys]:
            del self._created[created]


def _batching(part: ServiceParts, changes: Plan) -> BatchingStatus:
    """What the engines were started with: the admission limit is that of the first accelerator in use."""
    limits = part.spec.batching
    deployed = (facts.deployed for _, facts in changes.context.accelerators if facts.deployed)
    admission = next((memory.admission_tokens for memory in deployed), None)
    return BatchingStatus(
        max_num_seqs=limits.max_num_seqs, max_num_batched_tokens=limits.max_num_batched_tokens, admission=admission
    )
