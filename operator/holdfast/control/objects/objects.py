"""Owned objects of every service: applied when the rendering changes, repaired when another client changed them.

The kinds a service owns are watched by label. Each object is stored as a digest of our fields (`rendered.live`): less
than 2 kB, including kopf's overhead. This costs no request without changes and repairs within a tick. The alternative,
periodic lists, would cost five thousand objects per list for a thousand services, and repair later.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from holdfast.act.api import ApiError, ApiPort
from holdfast.act.apply import WATCH_LAG_SECONDS, Applier, Due, ForeignObject, adopt, delete, note
from holdfast.act.podfiles import named_config_maps
from holdfast.act.resources import WORKLOADS, live_path
from holdfast.api import inference_pool
from holdfast.api.quantities import some_of
from holdfast.api.reasons import Reason
from holdfast.control.objects.plan import Plan, fingerprint
from holdfast.domain.cluster import ClusterProblem, ReplicaPhase
from holdfast.domain.service import PREFILL, ServiceKey
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.render import RenderSettings, activator, render, router
from holdfast.render.refusals import refusal_told
from holdfast.rendered.live import Live
from holdfast.rendered.names import (
    activator_name,
    engines_name,
    limits_name,
    owner_reference,
    prefill_replicas_name,
    replicas_name,
    router_name,
)
from holdfast.rendered.pools import prefill_name

_LOG = logging.getLogger(__name__)
_IMMUTABLE = "field is immutable"  # validation.FieldImmutableErrorMsg of Kubernetes
_CORRECTED_AGAIN_SECONDS = 600.0  # an object that somebody changes again and again is reported no more often
_PRUNE_AGAIN_SECONDS = 300.0  # old ReplicaSets may use files for long, and their removal is not watched

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Work:
    """Pending writes for one service; mostly none.

    `due`: manifests to apply, with the reason. `births`: Deployments to create. `unwanted`: objects the service should
    no longer have, such as a PodDisruptionBudget at one replica. `leftovers`: pod files of earlier revisions, maybe
    unused. `orphans`: objects of an earlier service of this name; all other writes wait until they are adopted.
    `problem`: why the pending writes are unknown.
    """

    due: tuple[tuple[Manifest, Due], ...] = ()
    births: tuple[Manifest, ...] = ()
    unwanted: tuple[Live, ...] = ()
    leftovers: tuple[Live, ...] = ()
    orphans: tuple[Live, ...] = ()
    problem: ClusterProblem | None = None

    def __bool__(self) -> bool:
        return bool(self.due or self.births or self.unwanted or self.leftovers or self.orphans)


@dataclass(slots=True)
class _ObjectsState:
    """State of one service."""

    uid: str
    applier: Applier
    generation: int = 0  # of the spec that was last processed
    problems: tuple[ClusterProblem, ...] = ()
    settled: object = None  # the fingerprint at which all objects were found correct
    digests: tuple[str, ...] = ()  # of the objects as they were then
    holding: bool = False  # clients are routed to the activator, by the API server's state
    created: dict[str, float] = field(default_factory=dict)  # Deployments by name
    pruned: tuple[tuple[Live, ...], float] = ((), -math.inf)
    corrected: list[str] = field(default_factory=list)  # objects written again since the last report
    reported: dict[str, float] = field(default_factory=dict)  # when each was last reported


class Objects:
    """Compares rendered with live objects, and writes the difference."""

    def __init__(self, api: ApiPort, settings: RenderSettings) -> None:
        self._api = api
        self._settings = settings
        self._states: dict[ServiceKey, _ObjectsState] = {}

    def problems(self, part: ServiceParts) -> tuple[ClusterProblem, ...]:
        """Return the problems of the last writes for a service; the next decision's conditions name them.

        An edit may fix them: problems of another generation of the spec are not returned.
        """
        return self._of(part).problems

    def refused(self, part: ServiceParts, message: str) -> None:
        """Record that another write for a service was refused: an additional problem until the next writes."""
        state = self._of(part)
        state.problems = (*state.problems, ClusterProblem(Reason.APPLY_FAILED, refusal_told(message)))

    def corrected(self, part: ServiceParts, now: float) -> tuple[str, ...]:
        """Return the objects that were written again since the last call because somebody else changed them.

        Each is returned at most every ten minutes.
        """
        state = self._of(part)
        names, state.corrected = state.corrected, []
        due = {n: now for n in names if not 0 <= now - state.reported.get(n, -math.inf) < _CORRECTED_AGAIN_SECONDS}
        state.reported |= due
        return tuple(due)

    def has_activator(self, part: ServiceParts) -> bool:
        """Whether a service should have an activator."""
        return part.adoption is None and activator.is_wanted(part.service, self._settings)

    def has_router(self, part: ServiceParts) -> bool:
        """Whether a service should have a router."""
        return router.is_wanted(part.service, self._settings)

    def holding(self, key: ServiceKey) -> bool:
        """Whether clients of a service are led to its activator by now."""
        state = self._states.get(key)
        return state is not None and state.holding

    def forget_all_but(self, uids: Mapping[ServiceKey, str]) -> None:
        """Drop services that are gone, also where another one has their name now."""
        for key in [key for key, state in self._states.items() if uids.get(key) != state.uid]:
            del self._states[key]

    def work(self, part: ServiceParts, changes: Plan, now: float) -> Work:
        """Return the pending writes; renders nothing while neither the service nor its objects change."""
        state = self._of(part)
        pruning = _leftovers_due(state, part, now)
        current = (fingerprint(part, changes), part.live)
        if state.settled == current and not changes.births and not pruning:
            return Work()
        if part.adoption is not None:  # it has no object of ours
            state.settled, state.problems, state.holding = current, (), False
            return Work()
        orphans = tuple(
            live for live in part.live if live.orphan and live.orphan.falls_to(part.spec.key.name, part.born)
        )
        if orphans:
            return Work(orphans=orphans)
        try:
            manifests = render(part.service, changes.accelerators, self._settings, changes.context)
        except Exception as error:  # a template that the API server accepted but that cannot be rendered
            return Work(problem=_not_rendered(state, part, error))
        if state.settled is None:
            _recall(state, part, manifests, now)
        births = [m for m in manifests if m["kind"] in WORKLOADS and m["metadata"]["name"] in changes.births]
        due = tuple(_due(state, part, (manifest for manifest in manifests if manifest not in births), now))
        work = Work(
            due=due,
            births=tuple(m for m in births if not self.was_created(part, m["metadata"]["name"], now)),
            unwanted=tuple(_unwanted(part, manifests, led=_is_led(state, part, manifests, due))),
            leftovers=tuple(live for live in pruning if (live.kind, live.name) not in _identities(manifests)),
        )
        settled = all(state.applier.is_settled(m, part.shown(m["kind"], m["metadata"]["name"])) for m in manifests)
        if settled and not work.due and not work.unwanted:
            state.settled, state.problems, state.digests = current, (), tuple(_digests(part, manifests))
        state.holding = changes.context.holding and state.settled == current
        return work

    def digests(self, part: ServiceParts) -> Sequence[str]:
        """Return the digests of the objects as they were last found correct; until then, what the status says."""
        return self._of(part).digests or part.service.status.get("objectDigests") or ()

    def is_settled(self, part: ServiceParts, changes: Plan) -> bool:
        """Whether all objects were found correct for the present service and objects."""
        return self._of(part).settled == (fingerprint(part, changes), part.live)

    async def apply(self, part: ServiceParts, work: Work, now: float) -> tuple[Manifest, ...]:
        """Write objects that exist or have no size; return the Deployments that may be created after that.

        A refused write becomes a problem that the next decision names, and is retried.
        """
        state = self._of(part)
        if work.problem is not None:
            state.problems = (work.problem,)
            return ()
        if work.orphans:
            state.problems = tuple([problem for live in work.orphans if (problem := await self._adopt(part, live))])
            return ()
        problems: list[ClusterProblem] = []
        taken: set[tuple[str, str]] = set()
        for manifest, why in work.due:
            if _would_go_astray(part, manifest, taken):
                continue
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            writing = state.applier.apply(manifest, part.shown(kind, name), now)
            if problem := await self._write(part, manifest, why, writing):
                problems.append(problem)
                taken |= {(kind, name)} if problem.reason is Reason.NAME_CONFLICT else set()
        state.problems = tuple(problems)
        return tuple(manifest for manifest in work.births if not _would_go_astray(part, manifest, taken))

    async def acceptable(
        self, part: ServiceParts, births: Iterable[Manifest], sizes: Mapping[str, int]
    ) -> tuple[Manifest, ...]:
        """Return the new Deployments that the API server would accept; each refusal becomes a problem."""
        state = self._of(part)
        found: list[Manifest] = []

        async def ask(manifest: Manifest) -> None:
            await state.applier.ask_for_creation(manifest, sizes[manifest["metadata"]["name"]])
            found.append(manifest)

        for manifest in births:
            problem = await self._write(part, manifest, Due.RENDERED, ask(manifest))
            state.problems += (problem,) if problem else ()
        return tuple(found)

    async def create(
        self, part: ServiceParts, births: Iterable[Manifest], sizes: Mapping[str, int], now: float
    ) -> None:
        """Create the Deployments with a first size; each refusal becomes a problem."""
        state = self._of(part)
        for manifest in births:
            if size := sizes.get(manifest["metadata"]["name"], 0):
                creating = _create(state, manifest, size, now)
                problem = await self._write(part, manifest, Due.RENDERED, creating)
                state.problems += (problem,) if problem else ()

    def was_created(self, part: ServiceParts, deployment: str, now: float) -> bool:
        """Whether a Deployment was just created; the watch may show it a tick late, and it must not be made twice."""
        return abs(now - self._of(part).created.get(deployment, -math.inf)) < WATCH_LAG_SECONDS

    async def clear_away(self, part: ServiceParts, work: Work, now: float) -> None:
        """Delete what is no longer wanted."""
        state = self._of(part)
        for live in work.unwanted:
            path = live_path(part.spec.key.namespace, live.kind, live.name)
            await delete(self._api, path, live.uid, after_its_pods=live.kind in WORKLOADS)
            state.applier.forget(path)
        if work.leftovers:
            await self._prune(state, part, work.leftovers, now)

    async def _write(
        self, part: ServiceParts, manifest: Manifest, why: Due, writing: Awaitable[None]
    ) -> ClusterProblem | None:
        """Write one manifest; return why it was refused."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        try:
            await writing
        except ForeignObject as conflict:
            return ClusterProblem(Reason.NAME_CONFLICT, conflict.message)
        except ApiError as error:
            if error.namespace_ends:
                raise
            if error.status == 409:
                # Another client wrote or deleted it at the same moment: the next tick sees the result.
                _LOG.info("%s: %s %s: %s", part.spec.key, kind, name, error)
                return None
            shown = part.shown(kind, name)
            if error.is_invalid and _IMMUTABLE in error.message and shown is not None and manifest.get("immutable"):
                # An immutable object that replaced ours can only be recreated; pods that mount it wait for that.
                self._of(part).corrected.append(f"{kind} {name}")
                await delete(self._api, live_path(part.spec.key.namespace, kind, name), shown.uid)
                return None
            return ClusterProblem(
                Reason.APPLY_FAILED, (f"the API server rejected {kind} {name}: {_told(manifest, error)}")
            )
        if why is Due.DRIFTED:
            self._of(part).corrected.append(f"{kind} {name}")
        return None

    async def _adopt(self, part: ServiceParts, live: Live) -> ClusterProblem | None:
        """Adopt an orphan. Size and pods stay; differences are written once the watch shows our ownership."""
        key, owner = part.spec.key, owner_reference(part.service)
        _LOG.info("%s: adopted %s %s of an earlier LLMService with this name", key, live.kind, live.name)
        try:
            await adopt(self._api, live_path(key.namespace, live.kind, live.name), live.kind, owner, part.born)
        except ApiError as error:
            if error.namespace_ends:
                raise
            if error.status != 409:
                told = f"the API server rejected {live.kind} {live.name}: {refusal_told(error.message)}"
                return ClusterProblem(Reason.APPLY_FAILED, told)
        return None

    async def _prune(self, state: _ObjectsState, part: ServiceParts, leftovers: tuple[Live, ...], now: float) -> None:
        """Delete pod files of earlier revisions to which no ReplicaSet and no pod refers any more."""
        key, names = part.spec.key, [live.name for live in leftovers]
        named = await named_config_maps(self._api, key, names)
        if part.prefill is not None:
            named |= await named_config_maps(self._api, key._replace(pool=PREFILL), names)
        for live in leftovers:
            if live.name not in named:
                await delete(self._api, live_path(key.namespace, live.kind, live.name), live.uid)
        state.pruned = (_old_files(part), now)

    def _of(self, part: ServiceParts) -> _ObjectsState:
        state = self._states.get(part.spec.key)
        if state is None or state.uid != part.spec.uid:
            state = self._states[part.spec.key] = _ObjectsState(part.spec.uid, Applier(self._api))
        if state.generation != part.spec.generation:
            state.generation, state.problems = part.spec.generation, ()
        return state


def _would_go_astray(part: ServiceParts, manifest: Manifest, taken: Set[tuple[str, str]]) -> bool:
    """Whether a workload relies on an object whose name somebody else has.

    Pods would run with the rights of a foreign ServiceAccount, a router would send requests to foreign engines.
    """
    name = part.spec.key.name
    if manifest["kind"] not in WORKLOADS:
        return False
    is_router = manifest["metadata"]["name"] == router_name(name)
    lists = {replicas_name(name), prefill_replicas_name(name)} if is_router else set()
    return any(kind == "ServiceAccount" or (kind == "Service" and other in lists) for kind, other in taken)


def _told(manifest: Manifest, error: ApiError) -> str:
    """Why a write was refused, with the remedy if the existing object can never become the declared one."""
    if not (error.is_invalid and _IMMUTABLE in error.message):
        return refusal_told(error.message)
    kind, meta = manifest["kind"], manifest["metadata"]
    pods = " and its pods" if kind in WORKLOADS else ""
    command = f"kubectl -n {meta['namespace']} delete {kind.lower()} {meta['name']}"
    return f"{error.message}; delete the {kind}{pods}, and the operator creates it again: {command}"


def correction(objects: Sequence[str]) -> str:
    """Message: objects that somebody else changed were written again, and where changes belong."""
    one = len(objects) == 1
    was, has = ("was", "has") if one else ("were", "have")
    told = f"{some_of(objects)} {was} changed or deleted by somebody else and {has} been written again"
    return f"{told}; change the LLMService instead"


def _not_rendered(state: _ObjectsState, part: ServiceParts, error: Exception) -> ClusterProblem:
    message = (
        f"rendering its objects failed ({type(error).__name__}: {error}), so the running objects do not change. "
        "Check spec.template and accelerators[].template for a list, an object or a text of the wrong type"
    )
    problem = ClusterProblem(Reason.INVALID, message)
    if problem not in state.problems:
        _LOG.error("%s: %s", part.spec.key, message, exc_info=error)
    return problem


def _recall(state: _ObjectsState, part: ServiceParts, manifests: Iterable[Manifest], now: float) -> None:
    """Leave alone what the process before wrote: a restart would write every object of every service anew."""
    noted = frozenset(part.service.status.get("objectDigests") or ())
    for manifest in manifests if noted else ():
        state.applier.recall(manifest, part.shown(manifest["kind"], manifest["metadata"]["name"]), noted, now)


def _digests(part: ServiceParts, manifests: Iterable[Manifest]) -> Iterator[str]:
    for manifest in manifests:
        if shown := part.shown(manifest["kind"], manifest["metadata"]["name"]):
            yield note(manifest, shown)


def _due(
    state: _ObjectsState, part: ServiceParts, manifests: Iterable[Manifest], now: float
) -> Iterable[tuple[Manifest, Due]]:
    for manifest in manifests:
        if why := state.applier.due(manifest, part.shown(manifest["kind"], manifest["metadata"]["name"]), now):
            yield manifest, why


async def _create(state: _ObjectsState, workload: Manifest, size: int, now: float) -> None:
    await state.applier.create_workload(workload, size, now)
    state.created[workload["metadata"]["name"]] = now


def _is_led(
    state: _ObjectsState, part: ServiceParts, manifests: Iterable[Manifest], due: Iterable[tuple[Manifest, Due]]
) -> bool:
    """Whether the Service of the clients leads where it is rendered to, as the watch shows it.

    Until then it selects the pods of an activator or a router: the API server may have refused the write.
    """
    front = ("Service", part.spec.key.name)
    written = front not in _identities(manifest for manifest, _ in due)
    found = (each for each in manifests if (each["kind"], each["metadata"]["name"]) == front)
    return written and all(state.applier.is_settled(each, part.shown(*front)) for each in found)


def _unwanted(part: ServiceParts, manifests: Iterable[Manifest], *, led: bool) -> Iterable[Live]:
    """Optional objects that should not exist now; Deployments are removed by the plan, pod files when unused."""
    rendered = _identities(manifests)
    named = {("ConfigMap", limits_name(part.spec.key.name)), *_of_activator(part, led=led), *_of_router(part, led=led)}
    named |= set(_of_prefill(part))
    # After an edit of accelerators[].nodes; until its successor is there, the workload of the other kind serves.
    replaced = {live.name for live in part.live if live.kind in WORKLOADS and (live.kind, live.name) in rendered}
    for live in part.live:
        goes = (
            live.kind in ("PodDisruptionBudget", "PodMonitor", inference_pool.KIND)
            or (live.kind, live.name) in named
            or (live.kind in WORKLOADS and live.name in replaced)
        )
        if goes and not live.ending and part.spec.uid in live.owners and (live.kind, live.name) not in rendered:
            yield live


def _of_activator(part: ServiceParts, *, led: bool) -> set[tuple[str, str]]:
    """Objects of an activator that may be deleted now: its Services last, because held requests leave through one."""
    name = part.spec.key.name
    deployment = ("Deployment", activator_name(name))
    if any(placement.workload.name == activator_name(name) for placement in part.placements):
        return set()
    if any((live.kind, live.name) == deployment for live in part.live):
        return {deployment} if led else set()
    return {("Service", activator_name(name)), ("Service", engines_name(name))}


def _of_router(part: ServiceParts, *, led: bool) -> set[tuple[str, str]]:
    """Objects of a router that may be deleted now: the Service by which it finds the replicas last."""
    deployment = ("Deployment", router_name(part.spec.key.name))
    if any((live.kind, live.name) == deployment for live in part.live):
        return {deployment} if led and part.router is not None else set()
    return {("Service", replicas_name(part.spec.key.name))}


def _of_prefill(part: ServiceParts) -> Iterator[tuple[str, str]]:
    """Objects of a prefill pool. While there is one, its pod files stay until no Deployment refers to them."""
    name = part.spec.key.name
    pool = prefill_name(name)
    yield "Service", prefill_replicas_name(name)
    for live in part.live:
        kept = part.prefill is not None and live.name.startswith(f"{pool}-pod-")
        if not kept and (live.name == pool or live.name.startswith(f"{pool}-")):
            yield live.kind, live.name


def _leftovers_due(state: _ObjectsState, part: ServiceParts, now: float) -> tuple[Live, ...]:
    """The pod files to check now: none while replicas are replaced or drain, or soon after the last check."""
    if any(placement.rolling_out or not placement.observed for placement in part.placements):
        state.pruned = ((), -math.inf)
        return ()
    if any(replica.phase is ReplicaPhase.DRAINING for replica in part.replicas):
        return ()
    files = _old_files(part)
    seen, at = state.pruned
    return files if files != seen or abs(now - at) >= _PRUNE_AGAIN_SECONDS else ()


def _old_files(part: ServiceParts) -> tuple[Live, ...]:
    """Pod files to which no Deployment of the service refers; without a Deployment none counts as old."""
    pool = [part.prefill.deployed] if part.prefill and part.prefill.deployed else []
    templates = [item.rendered.template_json if item.rendered else "" for item in (*part.deployed, *pool)]
    if not templates or "" in templates:
        return ()
    name = part.spec.key.name
    prefixes = (f"{name}-pod-", *([f"{prefill_name(name)}-pod-"] if pool else []))
    return tuple(
        live
        for live in part.live
        if live.kind == "ConfigMap" and live.name.startswith(prefixes) and part.spec.uid in live.owners
        if not any(live.name in template for template in templates)
    )


def _identities(manifests: Iterable[Manifest]) -> set[tuple[str, str]]:
    return {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
