"""Carries decisions out: the object is looked at again, then manifests, sizes, status and Events, in that order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from holdfast.act import events, scale
from holdfast.act.api import ApiError, ApiPort, ApiUnreachable
from holdfast.act.apply import Applier, ForeignObject
from holdfast.control.report import condition_news, invalid_status, status_of
from holdfast.act.resources import deployment_path, service_path
from holdfast.act.status import StatusWriter
from holdfast.api.reasons import Reason
from holdfast.control.plan import Plan, plan
from holdfast.domain.cluster import ClusterProblem
from holdfast.domain.decision import Action, Decision
from holdfast.domain.service import ServiceKey
from holdfast.observe.cluster import Invalid, ServiceParts
from holdfast.observe.prometheus import MetricsSource
from holdfast.render import RenderSettings, render

_LOG = logging.getLogger(__name__)
_CONCURRENCY = 16
_REPEAT_EVENT_AFTER_SECONDS = 60.0


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
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    def problems(self, key: ServiceKey) -> tuple[ClusterProblem, ...]:
        """Return what stood in the way of the last writes for a service; the next decision's conditions name it."""
        return self._problems.get(key, ())

    async def act(
        self, services: Sequence[ServiceParts], decisions: Sequence[Decision], invalid: Sequence[Invalid], now: float
    ) -> None:
        """Carry out all decisions of one tick."""
        self._forget_all_but({part.spec.key for part in services} | {entry.key for entry in invalid})
        parts = {part.spec.key: part for part in services}
        shrinking = [decision.key for decision in decisions if decision.verdict.action is Action.SCALE_DOWN]
        running = await self._metrics.running_by_pod(shrinking, now) if shrinking else {}
        await asyncio.gather(
            *(self._guarded(self._one(parts[d.key], d, running.get(d.key, {}), now), d.key) for d in decisions),
            *(self._guarded(self._report_invalid(entry, now), entry.key) for entry in invalid),
        )

    async def _guarded(self, work: object, key: ServiceKey) -> None:
        async with self._slots:
            try:
                await work  # type: ignore[misc]
            except (ApiError, ApiUnreachable, scale.StaleDecision) as error:
                self._telemetry.error("act")
                _LOG.warning("%s: %s", key, error)
            except Exception:
                self._telemetry.error("act")
                _LOG.exception("%s: acting failed", key)

    async def _one(self, part: ServiceParts, decision: Decision, running: Mapping[str, float], now: float) -> None:
        if not self._may_write():
            return
        changes = plan(part, decision, self._render_settings)
        try:
            await self._carry_out(part, decision, changes, running)
        finally:
            await self._tell(part, decision, now)

    async def _carry_out(
        self, part: ServiceParts, decision: Decision, changes: Plan, running: Mapping[str, float]
    ) -> None:
        if changes.moves and not await self._still_wanted(decision):
            return
        self._problems[decision.key] = tuple(await self._apply_all(part, changes))
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

    async def _apply_all(self, part: ServiceParts, changes: Plan) -> list[ClusterProblem]:
        problems = []
        for manifest in render(part.service, changes.accelerators, self._render_settings, changes.context):
            try:
                if manifest["kind"] == "Deployment" and manifest["metadata"]["name"] in changes.create:
                    await self._applier.create_deployment(manifest, changes.create[manifest["metadata"]["name"]])
                else:
                    await self._applier.apply(manifest)
            except ForeignObject as conflict:
                problems.append(ClusterProblem(Reason.NAME_CONFLICT, conflict.message))
            except ApiError as error:
                kind, name = manifest["kind"], manifest["metadata"]["name"]
                problems.append(ClusterProblem(Reason.INVALID, f"{kind} {name} was refused: {error.message}"))
        return problems

    async def _still_wanted(self, decision: Decision) -> bool:
        """Look at the object once more just before writing: it may be gone, edited or being deleted."""
        try:
            meta = (await self._api.request("GET", service_path(decision.key)))["metadata"]
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return meta.get("generation") == decision.generation and "deletionTimestamp" not in meta

    async def _tell(self, part: ServiceParts, decision: Decision, now: float) -> None:
        old = self._status.last(decision.key, part.service.status)
        new = status_of(part, decision, old, now)
        self._telemetry.decided(decision)
        await self._status.write(decision.key, new, part.service.status, now)
        if self._is_new_change(decision, now):
            verdict = decision.verdict
            text = f"{verdict.action.value}: {verdict.message}"
            _LOG.info("%s: %s/%s: %s", decision.key, verdict.action.value, verdict.reason, verdict.message)
            await self._event(part, verdict.reason, text, warning=False, now=now)
        for condition in condition_news(old, new):
            warning = condition["status"] == "False"
            await self._event(part, condition["reason"], condition["message"], warning=warning, now=now)

    async def _event(self, part: ServiceParts, reason: str, message: str, *, warning: bool, now: float) -> None:
        key, uid = part.spec.key, part.spec.uid
        await events.post_event(self._api, key, uid, reason=str(reason), message=message, warning=warning, now=now)

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
        for table in (self._problems, self._told):
            for key in table.keys() - keys:
                del table[key]  # type: ignore[attr-defined]
