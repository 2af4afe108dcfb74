"""Status is written only on change: immediately if it is news, at most once a minute if only numbers changed.

Numbers of a thousand services may be due in the same tick, so they are written in the background.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from holdfast.act.api import APPLY, MERGE, PATCH, ApiError, ApiPort, Body
from holdfast.act.deadband import same
from holdfast.act.older_types import undeclared_fields, without_fields
from holdfast.act.resources import service_path
from holdfast.act.unowned_status import leftovers
from holdfast.act.write_queue import WriteQueue
from holdfast.api.llmservice import GROUP, KIND, VERSION
from holdfast.api.status import LLMServiceStatus, StatusPart
from holdfast.domain.service import ServiceKey

STATUS = "holdfast-status"
_NUMBERS_EVERY_SECONDS = 60.0
# Longer for a status from before our start: slow queries, sent once a minute in turns, have no answers at first, and
# figures would be removed only to be restored.
_UNTIL_ALL_IS_ASKED_SECONDS = 30.0
_WATCH_LAG_SECONDS = 10.0
_NEWS_FIELDS = ("observedGeneration", "url", "selector", "replicas")


@dataclass(frozen=True, slots=True)
class _WrittenStatus:
    status: Mapping[str, Any]
    at: float
    seen: bool = False  # whether the watch has shown it since
    edited_at: float | None = None  # since when the watch shows another status
    taken: tuple[Body, ...] = ()  # foreign parts that were removed: if they come back, they are not removed again


class StatusWriter:
    """Remembers the written status of every service, so that an unchanged service causes no writes."""

    def __init__(self, api: ApiPort) -> None:
        self._api = api
        self._written: dict[ServiceKey, _WrittenStatus] = {}
        self._found_at: dict[ServiceKey, float] = {}
        self._later = WriteQueue()

    async def write(self, key: ServiceKey, uid: str, status: Body, observed: Mapping[str, Any], now: float) -> float:
        """Write the status if it is due; `observed` is the status by the watch.

        Edits of other clients are overwritten as soon as watch delay cannot explain the difference.

        Returns when the status will be due if only its figures change: infinite if the written status is equal, minus
        infinite if news or a foreign edit is pending.
        """
        self._found_at.setdefault(key, now)
        self._look(key, observed, now)
        last = self._last(key, observed)
        edited = last.edited_at is not None and now - last.edited_at >= _WATCH_LAG_SECONDS
        due_at = -math.inf if edited else last.at + least_age_seconds(last.status, status)
        if due_at == -math.inf:
            await self._later.displace(key)
            if edited and (left := leftovers(observed, last.status)):
                await self._take_away(key, uid, last, left)
            await self._send(key, uid, status, now)
            return math.inf if self.last(key, observed) is status else -math.inf
        if due_at <= now:
            self._later.put(key, partial(self._send, key, uid, status, now))
        return due_at if last.edited_at is None else -math.inf

    def _last(self, key: ServiceKey, observed: Mapping[str, Any]) -> _WrittenStatus:
        return self._written.get(key) or _WrittenStatus(observed, self._found_at[key] + _UNTIL_ALL_IS_ASKED_SECONDS)

    def _look(self, key: ServiceKey, observed: Mapping[str, Any], now: float) -> None:
        last = self._written.get(key)
        if last is None:
            return
        ours = observed == last.status or _holds(observed, last.status)
        left = () if observed == last.status else leftovers(observed, last.status)
        if ours and left in ((), last.taken):
            self._written[key] = replace(last, seen=True, edited_at=None)
        elif last.edited_at is None and (ours or last.seen):
            self._written[key] = replace(last, edited_at=now)

    async def settle(self) -> None:
        """Wait for the writes under way."""
        await self._later.settle()

    async def _take_away(self, key: ServiceKey, uid: str, last: _WrittenStatus, left: tuple[Body, ...]) -> None:
        """Remove foreign fields from our parts; if the status has changed meanwhile, the watch will show it."""
        body = [{"op": "test", "path": "/metadata/uid", "value": uid}, *left]
        try:
            await self._api.request("PATCH", f"{service_path(key)}/status", body=body, content_type=PATCH)
        except ApiError as error:
            if error.status not in (404, 409, 422):
                raise
        self._written[key] = replace(last, taken=left)

    async def _send(self, key: ServiceKey, uid: str, status: Body, now: float) -> None:
        """Write it; nothing to do if the object is gone or another one has its name."""
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": uid},
            "status": status,
        }
        if await apply_status(self._api, service_path(key), body, LLMServiceStatus):
            last = self._written.get(key)
            self._written[key] = _WrittenStatus(status, now, taken=last.taken if last else ())

    def last(self, key: ServiceKey, observed: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the newest status known: our own last write, else what the object says."""
        written = self._written.get(key)
        return written.status if written else observed

    def forget(self, keys: Iterable[ServiceKey]) -> None:
        """Drop deleted services."""
        for key in keys:
            self._later.drop(key)
            self._written.pop(key, None)
            self._found_at.pop(key, None)


async def apply_status(api: ApiPort, path: str, body: Body, parts: type[StatusPart]) -> bool:
    """Write the status of the object at `path`; False if it is gone or another one has its name.

    Raises ApiError if the API server refuses it.
    """
    try:
        await _apply_or_replace(api, f"{path}/status", body, parts)
    except ApiError as error:
        if error.status in (404, 409):
            return False
        raise
    return True


async def _apply_or_replace(api: ApiPort, path: str, body: Body, parts: type[StatusPart]) -> None:
    """Apply the status; if the result is invalid, remove the existing status and apply again.

    Fields with a second writer, as after restoring a backup, survive an apply that omits them. Such a remnant (a
    recommendation without its time) would make every later status invalid. A removal leaves no owner behind; a merge
    patch would create another field owner, and later applies could not remove its fields.
    """
    manager = {"fieldManager": STATUS}

    async def apply() -> None:
        await _apply_declared(api, path, {**manager, "force": "true"}, body)

    try:
        await apply()
    except ApiError as error:
        if not error.is_invalid:
            raise
        absent = {str(field.alias): None for field in parts.model_fields.values()}
        nothing = {"metadata": {"uid": body["metadata"]["uid"]}, "status": absent}
        await api.request("PATCH", path, query=manager, body=nothing, content_type=MERGE)
        await apply()


async def _apply_declared(api: ApiPort, path: str, query: Mapping[str, str], body: Body) -> None:
    """Apply the status without the fields that an older CRD does not have; a refusal names only some of them."""
    while True:
        try:
            await api.request("PATCH", path, query=query, body=body, content_type=APPLY)
            return
        except ApiError as error:
            declared = without_fields(body, undeclared_fields(str(error)))
            if declared == body:
                raise
            body = declared


def least_age_seconds(old: Mapping[str, Any], new: Mapping[str, Any]) -> float:
    """The age from which `old` gives way to `new`: any for news, a minute for figures, infinite if nothing changed."""
    if news(old) != news(new):
        return -math.inf
    return _NUMBERS_EVERY_SECONDS if has_moved(old, new) else math.inf


def has_moved(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a status changed beyond noise; confidence, which creeps towards one, is no reason to write."""
    return not same(_without_creeping(old), _without_creeping(new)) or _headroom_moved(old, new)


def _without_creeping(status: Mapping[str, Any]) -> dict[str, Any]:
    capacity, slo, batching = (status.get(part, {}) for part in ("capacity", "slo", "batching"))
    creeping = {"capacity": {**capacity, "confidence": None}, "slo": {**slo, "quantile": None}}
    # Engines move their limits at every step: figures, unlike other counts, with a deadband.
    limits = {name: float(value) if type(value) is int else value for name, value in batching.items()}
    return {**status, **creeping, "batching": limits}


def _headroom_moved(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether the expected frequency of exceeding the sized load doubled or halved."""
    before, now = (status.get("slo", {}).get("quantile") for status in (old, new))
    if before is None or now is None:
        return now is not None
    rarer, oftener = sorted((1.0 - before, 1.0 - now))
    return bool(oftener > 2.0 * rarer)


def news(status: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the part of a status whose change a person or a tool waits for."""
    conditions = tuple(
        (condition["type"], condition["status"], condition["reason"]) for condition in status.get("conditions", ())
    )
    decision = status.get("lastDecision", {})
    changed = (decision.get("action"), decision.get("time")) if decision.get("action") != "Hold" else ("Hold", None)
    applied = status.get("batching", {}).get("appliedLive")
    return (sorted(conditions), changed, applied, *(status.get(field) for field in _NEWS_FIELDS))


def _holds(observed: Any, written: Any) -> bool:
    """Whether all written fields are present; additions of other clients, such as their own conditions, are ignored."""
    if isinstance(written, Mapping):
        return isinstance(observed, Mapping) and all(
            field in observed and _holds(observed[field], value) for field, value in written.items()
        )
    if isinstance(written, list):
        return isinstance(observed, list) and all(any(_holds(item, mine) for item in observed) for mine in written)
    return bool(observed == written)
