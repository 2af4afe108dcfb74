"""Reads the Deployments of somebody else that services size as they are; nothing of them is watched.

Watches select by Holdfast's labels, which these pods do not have. So each target costs two requests per tick, and each
namespace with targets two more, all answered from the API server's cache.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.act.api import ApiError, ApiPort, ApiUnreachable, Body, NotLeading
from holdfast.act.resources import deployment_path, pods_path
from holdfast.act.scale import unmark
from holdfast.control.bounded_work import do_each
from holdfast.domain.cluster import NodeOffer
from holdfast.domain.service import ServiceKey
from holdfast.observe.adoption.adoption import TargetState, accelerator_labels, adopted, own_pods, rivals, selector_text
from holdfast.observe.objects import mapping
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.observe.objects.deletion_costs import deletion_cost_is_ours
from holdfast.observe.objects.sizers import AUTOSCALERS, aim_of, autoscalers_path

_LOG = logging.getLogger(__name__)
_RIGHTS_SECONDS = 30.0
_MOST_SECONDS = 3.0
_SCALE_VERBS = ("get", "patch")
_CACHED = {"resourceVersion": "0"}


@dataclass(frozen=True, slots=True)
class Found:
    """The services of a tick as they run, those whose target is refused, and the nodes with what all pods use."""

    parts: tuple[ServiceParts, ...]
    refused: tuple[Invalid, ...]
    nodes: tuple[NodeOffer, ...]


@dataclass(slots=True)
class _Seen:
    """What is known of one target; the last answer counts while the API server does not give another."""

    part: ServiceParts
    state: TargetState | None = None
    labels: Mapping[str, str] | None = None
    outcome: ServiceParts | Invalid | None = None
    may_scale: bool = False
    asked_at: float = -math.inf  # when the right to scale was asked for

    def is_of(self, part: ServiceParts) -> bool:
        """Whether the service and its target are the same as at the last look."""
        return (self.part.spec.uid, _target(self.part)) == (part.spec.uid, _target(part))

    @property
    def adopted_pods(self) -> tuple[Mapping[str, Any], ...]:
        """Its pods at the last look; none of a Deployment that is refused, such as one of Holdfast's own."""
        if self.state is None or self.state.deployment is None or not isinstance(self.outcome, ServiceParts):
            return ()
        return own_pods(self.state.deployment, self.state.pods)


class Targets:
    """Remembers the targets: while nothing about a service changes, `look` returns the identical object for it."""

    def __init__(self, api: ApiPort) -> None:
        self._api = api
        self._seen: dict[ServiceKey, _Seen] = {}

    async def look(self, parts: Sequence[ServiceParts], nodes: tuple[NodeOffer, ...], now: float) -> Found:
        """Read all targets. A service whose target was never read is left out until the API server answers."""
        declared = {part.spec.key: part for part in parts if part.service.spec.target is not None}
        if not declared and not self._seen:
            return Found(tuple(parts), (), nodes)
        stay = {key for key, part in declared.items() if key in self._seen and self._seen[key].is_of(part)}
        gone = {key: seen for key, seen in self._seen.items() if key not in stay}
        refused = {each.key: each for each in rivals(declared.values())}
        read = [part for key, part in declared.items() if key not in refused]
        await _in_time(self._leave(gone))
        for part in read:
            self._seen.setdefault(part.spec.key, _Seen(part)).part = part
        await _in_time(self._read(read, now))
        outcomes = {key: self._outcome(key, nodes) for key in declared if key not in refused}
        await _in_time(self._tidy())
        made = (outcomes.get(part.spec.key, None if part.spec.key in refused else part) for part in parts)
        found = [each for each in made if each is not None]
        return Found(
            tuple(each for each in found if isinstance(each, ServiceParts)),
            (*refused.values(), *(each for each in found if isinstance(each, Invalid))),
            _with_usage(nodes, (pod for seen in self._seen.values() for pod in seen.adopted_pods)),
        )

    def _outcome(self, key: ServiceKey, nodes: Sequence[NodeOffer]) -> ServiceParts | Invalid | None:
        seen = self._seen[key]
        if seen.state is None:
            return None
        own = own_pods(seen.state.deployment, seen.state.pods) if seen.state.deployment else ()
        seen.labels = accelerator_labels(own, nodes) or seen.labels or {}
        made = adopted(seen.part, seen.state, seen.labels)
        if seen.outcome != made:
            seen.outcome = made
        return seen.outcome

    async def _read(self, parts: Sequence[ServiceParts], now: float) -> None:
        autoscalers: dict[str, asyncio.Task[Mapping[str, str]]] = {}

        async def one(part: ServiceParts) -> None:
            seen, namespace = self._seen[part.spec.key], part.spec.key.namespace
            if namespace not in autoscalers:
                autoscalers[namespace] = asyncio.create_task(autoscalers_in(self._api, namespace))
            try:
                seen.state = await self._state(part, lambda: autoscalers[namespace], now)
            except (ApiError, ApiUnreachable) as error:
                _LOG.warning("%s: reading its target failed, the last answer counts: %s", part.spec.key, error)

        try:
            await do_each(parts, one, most=len(parts))
        finally:
            for task in autoscalers.values():
                task.cancel()
            await asyncio.gather(*autoscalers.values(), return_exceptions=True)

    async def _state(
        self, part: ServiceParts, autoscalers: Callable[[], Awaitable[Mapping[str, str]]], now: float
    ) -> TargetState:
        """Read one target. Raises ApiError and ApiUnreachable where nothing is known."""
        namespace, name = part.spec.key.namespace, _target(part)
        state = await read_target(self._api, namespace, name, autoscalers)
        if state.deployment is None:
            return state
        return replace(state, may_scale=await self._may_scale(self._seen[part.spec.key], now))

    async def _may_scale(self, seen: _Seen, now: float) -> bool:
        """Whether the operator may read and write the size, asked again now and then."""
        if abs(now - seen.asked_at) >= _RIGHTS_SECONDS:
            namespace, name = seen.part.spec.key.namespace, _target(seen.part)
            seen.may_scale = all([await self._may(namespace, name, verb) for verb in _SCALE_VERBS])
            seen.asked_at = now
        return seen.may_scale

    async def _may(self, namespace: str, name: str, verb: str) -> bool:
        place = {
            "namespace": namespace,
            "name": name,
            "group": "apps",
            "resource": "deployments",
            "subresource": "scale",
        }
        kind = "SelfSubjectAccessReview"
        body: Body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": ""},
            "spec": {"resourceAttributes": {**place, "verb": verb}},
        }
        answer = await self._api.request("POST", f"/apis/authorization.k8s.io/v1/{kind.lower()}s", body=body)
        return bool((answer.get("status") or {}).get("allowed"))

    async def _leave(self, gone: Mapping[ServiceKey, _Seen]) -> None:
        """Take our marks off the pods of services that are gone: their size stays, and nothing else was changed."""
        for key, seen in gone.items():
            if isinstance(seen.outcome, ServiceParts) and seen.outcome.adoption is not None:
                query = {"labelSelector": seen.outcome.adoption.selector}
                try:
                    listed = await _get(self._api, pods_path(key.namespace), "list pods", key.namespace, query)
                except _Forbidden:
                    listed = {}
                except (ApiError, ApiUnreachable):
                    continue  # the next tick tries again
                if not await self._unmark(key, listed.get("items") or ()):
                    continue
            del self._seen[key]

    async def _tidy(self) -> None:
        for key, seen in self._seen.items():
            if seen.state is not None and _is_settled(seen.state.deployment):
                await self._unmark(key, seen.adopted_pods)

    async def _unmark(self, key: ServiceKey, pods: Iterable[Mapping[str, Any]]) -> bool:
        """Take our marks off pods that stay: they count for the moment of a removal only. False if a write failed."""
        try:
            for pod in pods:
                if deletion_cost_is_ours(pod) and not pod["metadata"].get("deletionTimestamp"):
                    await unmark(self._api, key.namespace, pod["metadata"]["name"])
        except (ApiError, ApiUnreachable, NotLeading) as error:
            _LOG.warning("%s: removing the deletion costs of its pods failed: %s", key, error)
            return False
        return True


class _Forbidden(Exception):
    """Something may not be read; the text says what, such as `list pods in namespace prod`."""


async def _in_time(work: Coroutine[None, None, None]) -> None:
    """Do what can be done in time: other services do not wait for a slow API server, and the next tick goes on."""
    try:
        async with asyncio.timeout(_MOST_SECONDS):
            await work
    except TimeoutError:
        _LOG.warning("the API server is slow: not every target was read in this tick, the last answers count")


async def read_target(
    api: ApiPort, namespace: str, name: str, autoscalers: Callable[[], Awaitable[Mapping[str, str]]]
) -> TargetState:
    """Read a Deployment, its pods, and who sizes it; raises ApiError and ApiUnreachable where nothing is known."""
    try:
        deployment = await _get(api, deployment_path(namespace, name), "get deployments", namespace)
        query = {"labelSelector": selector_text(deployment)}
        pods = await _get(api, pods_path(namespace), "list pods", namespace, query)
        rival = (await autoscalers()).get(name, "")
    except _Forbidden as forbidden:
        return TargetState(unreadable=str(forbidden))
    except ApiError as error:
        if error.status == 404:
            return TargetState()
        raise
    return TargetState(deployment, tuple(pods.get("items") or ()), rival)


async def autoscalers_in(api: ApiPort, namespace: str) -> Mapping[str, str]:
    """Return which autoscaler sizes a Deployment, by the Deployment's name; one before the HPA it made."""
    found: dict[str, str] = {}
    for kind in AUTOSCALERS:
        path = autoscalers_path(kind, namespace)
        try:
            listed = await _get(api, path, f"list {path.rpartition('/')[2]}", namespace)
        except ApiError as error:
            if error.status == 404:  # no such API
                continue
            raise
        for item in listed.get("items") or ():
            if aim := aim_of(item):
                found[aim] = f"{kind} {item['metadata']['name']}"
    return found


async def _get(api: ApiPort, path: str, what: str, namespace: str, query: Mapping[str, str] | None = None) -> Body:
    try:
        return await api.request("GET", path, query={**_CACHED, **(query or {})})
    except ApiError as error:
        if error.status == 403:
            raise _Forbidden(f"{what} in namespace {namespace}") from error
        raise


def _target(part: ServiceParts) -> str:
    return part.service.spec.target.name if part.service.spec.target else ""


def _is_settled(deployment: Mapping[str, Any] | None) -> bool:
    """Whether Kubernetes has removed what a smaller size asked for."""
    if deployment is None:
        return False
    meta, spec, status = deployment["metadata"], deployment.get("spec") or {}, deployment.get("status") or {}
    observed = int(status.get("observedGeneration", 0)) >= int(meta.get("generation", 0))
    return observed and int(status.get("replicas", 0)) <= int(spec.get("replicas", 1))


def _with_usage(nodes: Sequence[NodeOffer], pods: Iterable[Mapping[str, Any]]) -> tuple[NodeOffer, ...]:
    """Return the nodes with the GPUs that these pods hold there as well."""
    more: dict[str, dict[str, int]] = {}
    for pod in pods:
        home = pod.get("spec", {}).get("nodeName", "")
        if home and not mapping.has_ended(pod):
            held = more.setdefault(home, {})
            for name, amount in mapping.requested_gpus(pod):
                held[name] = held.get(name, 0) + amount
    return tuple(_holding(node, more[node.name]) if node.name in more else node for node in nodes)


def _holding(node: NodeOffer, more: Mapping[str, int]) -> NodeOffer:
    used = dict(node.used)
    return replace(
        node, used=tuple(sorted({**used, **{name: used.get(name, 0) + n for name, n in more.items()}}.items()))
    )
