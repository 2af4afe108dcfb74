"""Publishes decisions with their reason in the service's status, in Events and in the log, each once."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from holdfast.act import events
from holdfast.act.api import ApiError, ApiPort
from holdfast.act.status import StatusWriter
from holdfast.api.reasons import Reason
from holdfast.api.status import BatchingStatus
from holdfast.control.limits.limits_in_force import Applied
from holdfast.control.objects.objects import correction
from holdfast.control.objects.plan import Plan
from holdfast.control.status import decision_record
from holdfast.control.status.decision_record import Records
from holdfast.control.status.explanation import explained
from holdfast.control.status.node_labels import NodeLabels
from holdfast.control.status.pins import LASTING_SECONDS, Pins
from holdfast.control.status.remedies import with_remedies
from holdfast.control.status.report import condition_news, invalid_status, is_warning, iso, status_of
from holdfast.domain.cluster import NodeOffer, QueueLimit, ReplicaPhase
from holdfast.domain.decision import Action, BatchingTarget, Decision, Restart
from holdfast.domain.service import ServiceKey
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.render import remarks
from holdfast.rendered.batching import with_limits

_LOG = logging.getLogger(__name__)
_REPEAT_EVENT_AFTER_SECONDS = 60.0


class StatusPublisher:
    """Remembers per service what was published, so that nothing is written twice."""

    def __init__(self, api: ApiPort, *, platform_assigns_ids: bool = False) -> None:
        self._api = api
        self._platform_assigns_ids = platform_assigns_ids
        self._status = StatusWriter(api)
        self._changes: dict[ServiceKey, tuple[object, float]] = {}
        self._batching: dict[ServiceKey, BatchingTarget] = {}
        self._queue_limits: dict[ServiceKey, QueueLimit] = {}
        self._unwritable: dict[ServiceKey, Invalid] = {}
        self._labels = NodeLabels()
        self._pins = Pins()

    def see(self, nodes: Sequence[NodeOffer]) -> None:
        """Take note of the nodes of this tick."""
        self._labels = NodeLabels(nodes)

    def written(self, part: ServiceParts) -> Mapping[str, Any]:
        """Return the last known status of a service."""
        return self._status.last(part.spec.key, part.service.status)

    def forget(self, gone: Collection[ServiceKey]) -> None:
        """Drop the state of deleted services."""
        self._status.forget(gone)
        self._pins.forget(gone)
        for key in gone:
            self._changes.pop(key, None)
            self._batching.pop(key, None)
            self._queue_limits.pop(key, None)
            self._unwritable.pop(key, None)

    async def tell(
        self,
        part: ServiceParts,
        decision: Decision,
        changes: Plan,
        applied: Applied,
        now: float,
        records: Records = decision_record.nothing,
        digests: Sequence[str] = (),
    ) -> float:
        """Write status if it changed, and an Event for each change. Raises ApiError.

        Returns the time of the next write if only figures change (see `StatusWriter.write`).
        """
        old = self.written(part)
        used = [target.accelerator for target in decision.verdict.targets if target.replicas]
        known = self._remarks(part, used, changes)
        found = [applied.condition] if applied.condition else []
        conditions = with_remedies(decision.conditions, part, decision.verdict.replicas, self._labels)
        shown = replace(decision, conditions=conditions)
        new = status_of(part, shown, _batching(part, changes, applied), old, now, known, found, digests)
        due_at = await self._status.write(decision.key, part.spec.uid, new, part.service.status, now)
        await self._tell_change(part, decision, now, records)
        await self._tell_batching(part, decision, now)
        await self._tell_queue_limit(part, decision, now)
        for condition in condition_news(old, new):
            warning = is_warning(condition, old)
            if not warning and not old.get("conditions"):
                continue  # of a new service, the Event of its first decision says enough
            await self._event(part, condition["reason"], condition["message"], warning=warning, now=now)
        return min(due_at, await self._warn_of_pin(part, new, now))

    async def _warn_of_pin(self, part: ServiceParts, status: Mapping[str, Any], now: float) -> float:
        """Warn once of a pin that no applied manifest has, after it has lasted; return when that will be."""
        due_at = self._pins.due_at(part.spec, now)
        word = str(Reason.PINNED_OUTSIDE_MANIFEST)
        message = next((item["message"] for item in status["conditions"] if item["reason"] == word), "")
        if now < due_at or not message:
            return due_at
        text = f"for {LASTING_SECONDS / 60:.0f} minutes: {message}"
        await self._event(part, word, text, warning=True, now=now, turn=str(part.spec.generation))
        self._pins.warned(part.spec)
        return math.inf

    def _remarks(self, part: ServiceParts, used: Sequence[str], changes: Plan) -> Sequence[str]:
        """Notes about rendered pods."""
        if part.adoption is not None:
            return ()
        serving = any(replica.phase is ReplicaPhase.READY for replica in part.replicas)
        assigned = self._platform_assigns_ids
        return remarks(part.service, used, changes.context, serving=serving, platform_assigns_ids=assigned)

    async def tell_invalid(self, entry: Invalid, now: float) -> None:
        """Write the status of an invalid service, and an Event. Raises ApiError.

        If the object is older than the rule it breaks, the API server may refuse its status too: then only the Event
        exists.
        """
        old = self._status.last(entry.key, entry.status)
        new = invalid_status(entry, old, now)
        try:
            await self._status.write(entry.key, entry.uid, new, entry.status, now)
            news = bool(condition_news(old, new))
        except ApiError as error:
            if not error.is_invalid:
                raise
            news = self._is_new_refusal(entry)
        if news:
            _LOG.warning("%s: %s: %s", entry.key, entry.reason, entry.message)
            word = str(entry.reason)
            event = events.event_body(entry.key, entry.uid, reason=word, message=entry.message, warning=True, now=now)
            await events.post_event(self._api, event)

    def _is_new_refusal(self, entry: Invalid) -> bool:
        last = self._unwritable.get(entry.key)
        self._unwritable[entry.key] = entry
        return last is None or (last.uid, last.generation, last.message) != (entry.uid, entry.generation, entry.message)

    async def _tell_change(self, part: ServiceParts, decision: Decision, now: float, records: Records) -> None:
        if not self._is_new_change(decision, now):
            return
        verdict = decision.verdict
        text = f"{verdict.action.value}: {verdict.message}"
        _LOG.info("%s: %s/%s: %s", decision.key, verdict.action, verdict.reason, verdict.message)
        whole = json.dumps(explained(verdict, decision, iso(now)).to_dict())
        notes = {events.DECISION_ANNOTATION: whole, events.RECORD_ANNOTATION: records(decision.key)}
        await self._event(part, verdict.reason, text, warning=False, now=now, notes=notes)

    async def _tell_batching(self, part: ServiceParts, decision: Decision, now: float) -> None:
        target = decision.batching
        if target is None or target.reason is None:
            if target is None or target.before is None:  # no trial is under way
                self._batching.pop(decision.key, None)
            return
        asked = replace(target, message="")  # until the Deployment shows it, with other rates in each message
        if self._batching.get(decision.key) == asked:
            return
        self._batching[decision.key] = asked
        _LOG.info("%s: %s: %s", decision.key, target.reason, target.message)
        returned = target.reason is Reason.BATCHING_RETURNED
        await self._event(part, target.reason, target.message, warning=returned, now=now)

    async def _tell_queue_limit(self, part: ServiceParts, decision: Decision, now: float) -> None:
        target = decision.queue_limit
        if target is None or self._queue_limits.get(decision.key) == target.limit:
            return
        self._queue_limits[decision.key] = target.limit
        _LOG.info("%s: %s: %s", decision.key, Reason.QUEUE_LIMIT_CHANGED, target.message)
        await self._event(part, Reason.QUEUE_LIMIT_CHANGED, target.message, warning=False, now=now)

    async def tell_restart(self, part: ServiceParts, restart: Restart, uid: str, now: float) -> None:
        """Log and post an Event about a group whose leader was deleted, once for its uid. Raises ApiError."""
        _LOG.warning("%s: %s: %s", part.spec.key, restart.reason, restart.message)
        await self._event(part, restart.reason, restart.message, warning=True, now=now, turn=uid)

    async def tell_corrected(self, part: ServiceParts, objects: Sequence[str], now: float) -> None:
        """Log and post an Event about objects that were put right after somebody's edit. Raises ApiError."""
        if objects:
            message = correction(objects)
            _LOG.warning("%s: %s: %s", part.spec.key, Reason.DRIFT_CORRECTED, message)
            await self._event(part, Reason.DRIFT_CORRECTED, message, warning=True, now=now)

    async def _event(
        self,
        part: ServiceParts,
        reason: str,
        message: str,
        *,
        warning: bool,
        now: float,
        notes: Mapping[str, str] = MappingProxyType({}),
        turn: str = "",
    ) -> None:
        key, uid, word = part.spec.key, part.spec.uid, str(reason)
        body = events.event_body(
            key, uid, reason=word, message=message, warning=warning, now=now, notes=notes, turn=turn
        )
        await events.post_event(self._api, body)

    def _is_new_change(self, decision: Decision, now: float) -> bool:
        """Whether a change is new: the watch may show our own write a tick late."""
        verdict = decision.verdict
        if verdict.action is Action.HOLD:
            return False
        what = (verdict.action, verdict.targets)
        last, at = self._changes.get(decision.key, (None, 0.0))
        if what == last and now - at < _REPEAT_EVENT_AFTER_SECONDS:
            return False
        self._changes[decision.key] = (what, now)
        return True


def _batching(part: ServiceParts, changes: Plan, applied: Applied) -> BatchingStatus:
    """Limits in force by the engines' report, else the limits they were started with.

    The admission limit is that of the first accelerator in use; engines with the plugin have none.
    """
    facts = [facts for _, facts in changes.context.accelerators]
    tuned = next((facts.tuned for facts in facts if facts.tuned), None)
    limits = with_limits(part.service, tuned.limits).spec.batching if tuned else part.service.spec.batching
    deployed = (known.deployed for known in facts if known.deployed)
    admission = next((memory.admission_tokens for memory in deployed if not memory.has_plugin), None)
    return BatchingStatus(
        max_num_seqs=_whole(applied.active_sequences) or limits.max_num_seqs,
        max_num_batched_tokens=_whole(applied.tokens_per_step) or limits.max_num_batched_tokens,
        admission=admission,
        applied_live=applied.live,
    )


def _whole(bound: float | None) -> int | None:
    """The limit that an engine reports; None where that is no positive number."""
    return round(bound) if bound is not None and 0.0 < bound < math.inf else None
