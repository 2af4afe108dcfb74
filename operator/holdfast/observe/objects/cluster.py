"""kopf indices -> what runs. Each index holds small frozen values, never whole objects."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import kopf

from holdfast.api import group_set, inference_pool, llmbenchmark
from holdfast.api.crd import LLMSERVICE
from holdfast.api.images import with_copies
from holdfast.api.llmservice import GROUP, PLURAL, VERSION, InvalidLLMService, LLMService
from holdfast.api.privileges import refused_privileges
from holdfast.api.reasons import Reason
from holdfast.api.template_rules import NO_PRIVILEGES
from holdfast.api.tenants import limit_of
from holdfast.domain.cluster import Adoption, ClusterProblem, NodeOffer, Placement, Replica, Workload
from holdfast.domain.service import PREFILL, ServiceKey, ServiceSpec, key_of
from holdfast.domain.snapshot import Recalled
from holdfast.observe.objects import body_pruning, mapping
from holdfast.observe.objects.applied import applier_without_pin, fields_not_stored
from holdfast.observe.objects.benchmarks import Benchmark, benchmark_from_object
from holdfast.observe.objects.device_resources import DeviceResources
from holdfast.observe.objects.ended import EndedGroups, ended_from_member, ended_from_pod, newest
from holdfast.observe.objects.engines import EnginePod, engine_from_pod, limits_from_config_map
from holdfast.observe.objects.groups import Member, as_deployment, joined, member_from_pod
from holdfast.observe.objects.loading import LoadingPod, loading_from_pod
from holdfast.observe.objects.nodes import Nodes
from holdfast.observe.objects.recall import recalled
from holdfast.observe.objects.spec import to_spec
from holdfast.observe.objects.vllm_container import engine_url
from holdfast.rendered import context
from holdfast.rendered.live import Live
from holdfast.rendered.names import FOLLOWERS, SERVICE_LABEL, deployment_name, router_name, workload_kind
from holdfast.rendered.pools import prefill_pool, prefill_workload
from holdfast_engine.objectives.rules import Limits


@dataclass(frozen=True, slots=True)
class Invalid:
    """An object that we cannot interpret, or that is being deleted; its engines keep running unchanged."""

    key: ServiceKey
    generation: int
    message: str
    status: Mapping[str, Any] = field(default_factory=dict)
    uid: str = ""
    reason: Reason = Reason.INVALID

    @classmethod
    def of(cls, key: ServiceKey, body: Mapping[str, Any], message: str, reason: Reason = Reason.INVALID) -> Self:
        """Build from the object as watched, with the message for the user."""
        meta = body["metadata"]
        status = dict(body.get("status") or {})
        return cls(key, int(meta.get("generation", 0)), message, status, str(meta.get("uid", "")), reason)

    @classmethod
    def leaving(cls, key: ServiceKey, body: Mapping[str, Any]) -> Self | None:
        """A service whose deletion waits for a finalizer; None if Kubernetes itself deletes it."""
        meta = body["metadata"]
        held = [name for name in meta.get("finalizers") or () if name not in _KUBERNETES_OWN]
        if not held:
            return None
        message = (
            f"the object is being deleted since {meta['deletionTimestamp']} and waits for the finalizer "
            f"{', '.join(held)}; remove that finalizer to finish the deletion. Until then its replicas run on, but "
            "Holdfast neither sizes nor repairs them; Kubernetes deletes them together with the object"
        )
        return cls.of(key, body, message, Reason.DELETION_HELD)

    @classmethod
    def oversized(cls, key: ServiceKey, body: Mapping[str, Any]) -> Self | None:
        """A service whose spec is too large (it would use ten times its size in the operator's memory); else None."""
        try:
            length = len(json.dumps(body.get("spec"), default=dict))
        except RecursionError:
            return None  # parsing names the field
        if length <= _MOST_SPEC_CHARACTERS:
            return None
        message = (
            f"the spec has {length} characters of JSON, the limit is {_MOST_SPEC_CHARACTERS}; running objects do not "
            "change. Shorten spec.template, engine.env and those of accelerators, or mount a ConfigMap"
        )
        return cls.of(key, body, message)

    @classmethod
    def undecidable(cls, service: LLMService, error: Exception) -> Self:
        """A valid object for which the operator could not compute a decision."""
        meta = service.metadata
        message = (
            f"processing the spec failed ({type(error).__name__}: {error}); running objects do not change. "
            "Check the spec for an extreme number, and please report this with the operator's log"
        )
        return cls(ServiceKey(meta.namespace, meta.name), meta.generation, message, service.status, meta.uid)


@dataclass(frozen=True, slots=True)
class ObservedDeployment:
    """One Deployment or LeaderWorkerSet of ours: its size, its problems, and the rendering that its annotations record.

    `version` is its resourceVersion: the larger one is newer. `away_since`: see `mapping.away_since`.
    """

    placement: Placement
    problems: tuple[ClusterProblem, ...] = ()
    rendered: context.Deployed | None = None
    live: Live | None = None
    version: int = 0
    away_since: float | None = None


@dataclass(frozen=True, slots=True)
class PrefillPool:
    """The prefill pool of a service as it runs: of fixed size, and so no part of decisions."""

    replicas: tuple[Replica, ...] = ()
    deployed: ObservedDeployment | None = None


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """One service as declared and as it runs.

    `ended` are the newest pods that ended before they served; nothing is ever written to them.
    `live` are its objects other than pods, of the kinds in `watched`. `engines` are the pods that read limits.
    `loading` are pods that load their model, or are still marked so.
    `limits` are the limits in its ConfigMap, by accelerator. `born` is the creation time of the service (RFC 3339).
    `adoption`: the Deployment that it sizes as it is; a service with a target has nothing else (see `adoption`).
    `urls`: where the API servers of its pods listen, by the pods' names.
    `not_stored`: fields of the applied manifest that the stored object lacks (see `applied`).
    `router`: the Deployment of its router. `leaders`: name and uid of the leader of each of its groups of pods.
    `prefill`: its prefill pool, if it declares one.
    """

    service: LLMService
    spec: ServiceSpec
    replicas: tuple[Replica, ...] = ()
    deployed: tuple[ObservedDeployment, ...] = ()
    live: tuple[Live, ...] = ()
    watched: frozenset[str] = frozenset()
    engines: tuple[EnginePod, ...] = ()
    loading: tuple[LoadingPod, ...] = ()
    limits: tuple[tuple[str, Limits], ...] = ()
    born: str = ""
    ended: tuple[Replica, ...] = ()
    adoption: Adoption | None = None
    urls: tuple[tuple[str, str], ...] = ()
    not_stored: tuple[str, ...] = ()
    router: ObservedDeployment | None = None
    leaders: tuple[tuple[str, str], ...] = ()
    prefill: PrefillPool | None = None

    @property
    def selector(self) -> str:
        """The label selector of its pods."""
        return self.adoption.selector if self.adoption else f"{SERVICE_LABEL}={self.spec.key.label}"

    def shown(self, kind: str, name: str) -> Live | None:
        """Return an object as the watch shows it; None if its kind is not watched."""
        if kind not in self.watched:
            return None
        return next((live for live in self.live if (live.kind, live.name) == (kind, name)), Live.absent(kind, name))

    @property
    def placements(self) -> tuple[Placement, ...]:
        return tuple(item.placement for item in self.deployed)

    @property
    def problems(self) -> tuple[ClusterProblem, ...]:
        found = (*self.deployed, self.router) if self.router else self.deployed
        return tuple(problem for item in found for problem in item.problems)

    @property
    def recalled(self) -> Recalled:
        """What status recorded before the operator restarted."""
        return recalled(self.service.status, self.spec.generation)


# A pod template has to fit into the annotations of its Deployment, 256 KiB, and a spec may hold those of several.
_MOST_SPEC_CHARACTERS = 512 * 1024
_KUBERNETES_OWN = ("foregroundDeletion", "orphan")
_LOG = logging.getLogger(__name__)

# The kinds that a service owns in addition to its workloads and their pods.
_OWNED = {
    "ConfigMap": ("", "v1", "configmaps"),
    inference_pool.KIND: (inference_pool.GROUP, inference_pool.VERSION, inference_pool.PLURAL),
    "PodDisruptionBudget": ("policy", "v1", "poddisruptionbudgets"),
    "PodMonitor": ("monitoring.coreos.com", "v1", "podmonitors"),
    "Service": ("", "v1", "services"),
    "ServiceAccount": ("", "v1", "serviceaccounts"),
}

_GROUP_SETS = (group_set.GROUP, group_set.VERSION, group_set.PLURAL)

Declared = tuple[LLMService, ServiceSpec, str, tuple[str, ...]]
"""A service, what decisions see of it, `ServiceParts.born` and `ServiceParts.not_stored`."""

LimitsByAccelerator = tuple[tuple[str, Limits], ...]


class Pod(NamedTuple):
    """One pod, with the extended resources it holds; `member` is its part in a group of pods."""

    replica: Replica
    gpus: tuple[tuple[str, int], ...]
    engine: EnginePod | None
    loading: LoadingPod | None
    url: str = ""
    member: Member | None = None
    uid: str = ""


class _Shown(NamedTuple):
    """All index entries of one service."""

    declared: tuple[object, ...]
    deployments: tuple[ObservedDeployment, ...]
    live: tuple[Live, ...]
    pods: tuple[Pod, ...]
    followers: tuple[Pod, ...]
    limits: LimitsByAccelerator
    ended: tuple[Replica, ...]
    closing: frozenset[str]
    prefill: tuple[tuple[Pod, ...], tuple[ObservedDeployment, ...]] = ((), ())


class ClusterView:
    """Reads kopf's indices; empty until kopf has filled them."""

    def __init__(
        self,
        allowed: Collection[str] = NO_PRIVILEGES,
        max_priorities: Mapping[str, int] = MappingProxyType({}),
        devices: DeviceResources | None = None,
        nodes: Nodes | None = None,
        images: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._images = images
        self._devices = devices or DeviceResources()
        self._nodes = nodes or Nodes()
        self._allowed = allowed
        self._max_priorities = max_priorities
        self._watched: frozenset[str] = frozenset()
        self._services: Mapping[ServiceKey, Iterable[Declared | Invalid]] = {}
        self._pods: Mapping[ServiceKey, Iterable[Pod]] = {}
        self._ended: Mapping[ServiceKey, Iterable[Replica]] = {}
        self._ended_groups = EndedGroups()
        self._deployments: Mapping[ServiceKey, Iterable[ObservedDeployment]] = {}
        self._live: Mapping[ServiceKey, Iterable[Live]] = {}
        self._limits: Mapping[ServiceKey, Iterable[LimitsByAccelerator]] = {}
        self._benchmarks: Mapping[ServiceKey, Iterable[Benchmark]] = {}
        self._made: dict[ServiceKey, tuple[_Shown, ServiceParts]] = {}

    def register(
        self,
        registry: kopf.OperatorRegistry,
        settings: kopf.OperatorSettings,
        *,
        pod_monitors: bool = False,
        inference_pools: bool = False,
        group_sets: bool = False,
        benchmarks: bool = False,
    ) -> None:
        """Add the indices; all but services and nodes are filtered by label at the API server.

        `pod_monitors`, `inference_pools`, `group_sets`, `benchmarks`: whether that API exists; kopf logs an error for a
        kind that does not.
        """
        kopf.index(GROUP, VERSION, PLURAL, id="services", registry=registry)(body_pruning.after(self._index_service))
        # Before the index that empties the same bodies: kopf asks its indices in this order.
        kopf.index("", "v1", "pods", id="ended", registry=registry)(self._index_ended)
        for group, version, plural, name, function in (
            ("", "v1", "pods", "pods", _index_pod),
            ("apps", "v1", "deployments", "deployments", _index_deployment),
            *([(*_GROUP_SETS, "deployments", _index_group_set)] if group_sets else []),
        ):
            kopf.index(group, version, plural, id=name, registry=registry)(
                body_pruning.after(function, "spec", "status")
            )
            settings.watching.label_selectors[group, version, plural] = SERVICE_LABEL
        kopf.index(*_OWNED["ConfigMap"], id="limits", registry=registry)(_index_limits)
        optional = {"PodMonitor": pod_monitors, inference_pool.KIND: inference_pools, group_set.KIND: group_sets}
        kinds = ("Deployment", group_set.KIND, *_OWNED)
        self._watched = frozenset(kind for kind in kinds if optional.get(kind, True))
        for kind in self._watched & _OWNED.keys():
            read = body_pruning.after(_index_live, "spec", "data", "binaryData")  # pod files: the largest of all
            kopf.index(*_OWNED[kind], id="live", registry=registry)(read)
            settings.watching.label_selectors[_OWNED[kind]] = SERVICE_LABEL
        self._nodes.register(registry)
        if benchmarks:
            kopf.index(GROUP, VERSION, llmbenchmark.PLURAL, id="benchmarks", registry=registry)(
                body_pruning.after(_index_benchmark)
            )
        kopf.on.startup(id="remember-indices", registry=registry)(self._remember)

    async def _remember(self, **indices: Any) -> None:
        self._services, self._pods, self._ended = indices["services"], indices["pods"], indices["ended"]
        self._deployments, self._live, self._limits = indices["deployments"], indices["live"], indices["limits"]
        self._benchmarks = indices.get("benchmarks", {})

    async def _index_service(self, body: kopf.Body, **_: Any) -> dict[ServiceKey, Declared | Invalid]:
        meta = body["metadata"]
        key = ServiceKey(meta["namespace"], meta["name"])
        if meta.get("deletionTimestamp"):
            held = Invalid.leaving(key, body)
            return {key: held} if held else {}
        try:
            if oversized := Invalid.oversized(key, body):
                return {key: oversized}
            service = with_copies(LLMService.parse(body), self._images)
        except InvalidLLMService as error:
            return {key: Invalid.of(key, body, str(error))}
        refused = refused_privileges(service.spec, self._allowed)
        if refused:
            message = "; ".join(refused)
            return {key: Invalid(key, service.metadata.generation, message, service.status, service.metadata.uid)}
        try:
            spec = to_spec(service, limit_of(self._max_priorities, key.namespace), applier_without_pin(body))
            born = str(meta.get("creationTimestamp") or "")
            return {key: (service, spec, born, fields_not_stored(body, LLMSERVICE))}
        except Exception as error:  # otherwise the index would lack the service, and no condition would say why
            _LOG.exception("%s: processing the spec failed", key)
            return {key: Invalid.undecidable(service, error)}

    async def _index_ended(self, body: kopf.Body, **_: Any) -> dict[ServiceKey, Replica]:
        key, member = _owner(body), member_from_pod(body)
        if member is None:
            ended = ended_from_pod(body)
            return {} if ended is None else {key: ended}
        key = key._replace(pool="")
        leads = (mapping.replica_from_pod(body),) if body["metadata"]["name"] == member.leader else ()
        found = (*leads, *(pod.replica for pod in self._pods.get(key, ()) if pod.replica.name == member.leader))
        if (ended := ended_from_member(body, next(iter(found), None))) is not None:
            self._ended_groups.add(key, ended)
        return {}

    def services(self) -> tuple[ServiceParts, ...]:
        """Return every valid service, in order of keys."""
        found = {key: entry for key, entry in self._entries() if not isinstance(entry, Invalid)}
        for gone in self._made.keys() - found.keys():
            del self._made[gone]
            self._ended_groups.forget(gone)
        closing = self._nodes.closing()
        return tuple(self._parts(key, declared, closing) for key, declared in found.items())

    def _parts(self, key: ServiceKey, declared: Declared, closing: frozenset[str]) -> ServiceParts:
        """Return one service; the identical object if nothing changed, so that callers can compare by identity."""
        pods = tuple(self._pods.get(key, ()))
        followers = self._followers(key) if any(pod.member for pod in pods) else ()
        pool = key._replace(pool=PREFILL)
        shown = _Shown(
            (*declared, self._watched),
            tuple(self._deployments.get(key, ())),
            (*self._live.get(key, ()), *self._live.get(pool, ())),
            pods,
            followers,
            next(iter(self._limits.get(key, ())), ()),
            newest((*self._ended.get(key, ()), *self._ended_groups.of(key))),
            closing and closing.intersection(pod.replica.node for pod in (*pods, *followers)),
            (tuple(self._pods.get(pool, ())), tuple(self._deployments.get(pool, ()))),
        )
        before = self._made.get(key)
        if before is not None and before[0] == shown:
            return before[1]
        self._made[key] = (shown, made := self._make(declared, shown))
        return made

    def _followers(self, key: ServiceKey) -> tuple[Pod, ...]:
        """The pods of a service's groups that answer nobody: their label is that of a pool of their own."""
        return tuple(self._pods.get(key._replace(pool=FOLLOWERS), ()))

    def _make(self, declared: Declared, shown: _Shown) -> ServiceParts:
        service, spec, born, not_stored = declared
        deployed = tuple(item for item in shown.deployments if _is_ours(item, spec))
        live = [*shown.live, *(item.live for item in (*shown.deployments, *shown.prefill[1]) if item.live)]
        live.sort(key=lambda item: (item.kind, item.name))
        pods = sorted(shown.pods, key=lambda pod: pod.replica.name)
        replicas = (_replica(pod, shown.followers) for pod in pods)
        return ServiceParts(
            service=service,
            spec=spec,
            replicas=tuple(mapping.on_nodes(replicas, shown.closing)),
            deployed=deployed,
            live=tuple(live),
            watched=self._watched,
            engines=tuple(pod.engine for pod in pods if pod.engine),
            loading=tuple(pod.loading for pod in pods if pod.loading),
            urls=tuple((pod.replica.name, pod.url) for pod in pods if pod.url),
            limits=shown.limits,
            born=born,
            ended=shown.ended,
            not_stored=not_stored,
            router=next((item for item in shown.deployments if _is_router(item, spec)), None),
            leaders=tuple((pod.replica.name, pod.uid) for pod in pods if pod.member),
            prefill=_prefill_pool(pool, spec, *shown.prefill) if (pool := prefill_pool(service)) else None,
        )

    def invalid(self) -> tuple[Invalid, ...]:
        """Return every invalid service."""
        return tuple(entry for _, entry in self._entries() if isinstance(entry, Invalid))

    def nodes(self) -> tuple[NodeOffer, ...]:
        """Return the nodes that take pods, with what our own pods hold there."""
        used: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for pods in list(self._pods.values()):
            for pod in pods:
                for name, amount in pod.gpus if pod.replica.node else ():
                    used[pod.replica.node][name] += amount
        return mapping.with_usage(self._devices.added_to(self._nodes.offers()), used)

    def benchmarks(self) -> tuple[Benchmark, ...]:
        """Return every LLMBenchmark, oldest first."""
        found = (benchmark for key in list(self._benchmarks) for benchmark in self._benchmarks[key])
        return tuple(sorted(found, key=lambda benchmark: (benchmark.created, benchmark.key)))

    def _entries(self) -> list[tuple[ServiceKey, Declared | Invalid]]:
        return sorted(
            ((key, entry) for key in list(self._services) for entry in self._services[key]), key=lambda item: item[0]
        )


async def _index_pod(body: kopf.Body, **_: Any) -> dict[ServiceKey, Pod]:
    member = member_from_pod(body)
    if not mapping.is_replica(body) and (member is None or mapping.has_ended(body)):
        return {}
    key, replica, gpus = _owner(body), mapping.replica_from_pod(body), mapping.requested_gpus(body)
    if key.pool == FOLLOWERS:
        return {key: Pod(replica, gpus, None, None, member=member)}
    loading = loading_from_pod(body, replica)
    uid = str(body["metadata"].get("uid", ""))
    return {key: Pod(replica, gpus, engine_from_pod(body), loading, engine_url(body), member, uid)}


def _replica(pod: Pod, followers: Iterable[Pod]) -> Replica:
    """A pod as a replica, together with its followers where it leads a group."""
    if pod.member is None:
        return pod.replica
    name = pod.replica.name
    own = [each.replica for each in followers if each.member is not None and each.member.leader == name]
    return joined(pod.replica, pod.member, sorted(own, key=lambda follower: follower.name))


def _prefill_pool(
    pool: LLMService, spec: ServiceSpec, pods: Iterable[Pod], deployments: Iterable[ObservedDeployment]
) -> PrefillPool:
    name = prefill_workload(pool)
    deployed = (item for item in deployments if item.placement.workload.name == name and _is_owned(item, spec))
    return PrefillPool(tuple(sorted((pod.replica for pod in pods), key=lambda each: each.name)), next(deployed, None))


async def _index_deployment(body: kopf.Body, **_: Any) -> dict[ServiceKey, ObservedDeployment]:
    return {_owner(body): _observed("Deployment", body)}


async def _index_group_set(body: kopf.Body, **_: Any) -> dict[ServiceKey, ObservedDeployment]:
    return {_owner(body): _observed(group_set.KIND, as_deployment(body))}


def _observed(kind: str, deployment: Mapping[str, Any]) -> ObservedDeployment:
    return ObservedDeployment(
        mapping.placement_from_deployment(deployment),
        mapping.problems_from_deployment(deployment),
        context.Deployed.read(deployment),
        Live.of(kind, deployment),
        mapping.version_of(deployment),
        mapping.away_since(deployment),
    )


async def _index_live(body: kopf.Body, **_: Any) -> dict[ServiceKey, Live]:
    return {_owner(body): Live.of(body["kind"], body)}


async def _index_limits(body: kopf.Body, **_: Any) -> dict[ServiceKey, LimitsByAccelerator]:
    found = limits_from_config_map(body)
    return {} if found is None else {_owner(body): found}


async def _index_benchmark(body: kopf.Body, **_: Any) -> dict[ServiceKey, Benchmark]:
    found = benchmark_from_object(body)
    return {} if found is None else {found.key: found}


def _is_ours(deployed: ObservedDeployment, spec: ServiceSpec) -> bool:
    """Whether a workload may be scaled and deleted: labels alone prove nothing, because anybody can write them.

    One of the other kind, from before an edit of accelerators[].nodes, has no part in decisions.
    """
    placement = deployed.placement
    option = spec.accelerator(placement.accelerator)
    kind = placement.workload.kind if option is None else workload_kind(option.nodes)
    named = placement.workload == Workload(deployment_name(spec.key.name, placement.accelerator), kind)
    return named and _is_owned(deployed, spec)


def _is_router(deployed: ObservedDeployment, spec: ServiceSpec) -> bool:
    """Whether a Deployment is that of the router, and not that of an accelerator of this name."""
    placement = deployed.placement
    named = not placement.accelerator and placement.workload.name == router_name(spec.key.name)
    return named and _is_owned(deployed, spec)


def _is_owned(deployed: ObservedDeployment, spec: ServiceSpec) -> bool:
    return deployed.live is not None and spec.uid in deployed.live.owners


def _owner(body: Mapping[str, Any]) -> ServiceKey:
    meta = body["metadata"]
    return key_of(meta["namespace"], meta["labels"][SERVICE_LABEL])
