"""Writes that follow from a decision. Pure, so that it can be tested without an API server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import gt, lt
from types import MappingProxyType
from typing import Any

from holdfast.api import group_set
from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.domain.cluster import QueueLimit, ReplicaPhase, Workload, grown_surge, rollout_surge
from holdfast.domain.decision import Decision, PlacementTarget
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import AcceleratorOption, BatchingLimits
from holdfast.observe.objects.cluster import ObservedDeployment, ServiceParts
from holdfast.policy.estimate.demand import MOST_REPLICAS
from holdfast.render import AcceleratorFacts, RenderContext, deployment_name
from holdfast.render import Deployed as Remembered
from holdfast.render.arguments import TLS_FOLDER
from holdfast.rendered.batching import Tuned, with_limits
from holdfast.rendered.declared import revision
from holdfast.rendered.names import activator_name, router_name
from holdfast.rendered.pools import prefill_pool, prefill_workload
from holdfast_engine.objectives.rules import Limits


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes that follow from a decision.

    `accelerators` are rendered; `create` maps new Deployments to their first size, `fronts` does the same for those of
    activator, router and prefill pool; `shrink`, `grow` and `delete` name existing workloads. `restart` is the leader
    of a group whose pods are made anew, by name and uid.

    Shrinking precedes creating and growing. So the sum of sizes never exceeds the larger of the previous and the
    decided sum, even if the operator dies in between. `spare` more replicas than decided are allowed; None under a
    budget, which does not limit replicas.
    """

    accelerators: tuple[str, ...]
    context: RenderContext
    create: Mapping[str, int]
    fronts: Mapping[str, int]
    shrink: tuple[tuple[Workload, PlacementTarget], ...]
    grow: tuple[tuple[Workload, PlacementTarget], ...]
    delete: tuple[Workload, ...]
    spare: int | None = 0
    restart: tuple[str, str] | None = None

    @property
    def births(self) -> Mapping[str, int]:
        """All new Deployments with their first size."""
        return {**self.create, **self.fronts}

    @property
    def moves(self) -> bool:
        """Whether sizes change or a group is restarted: then the object is read once more before any write."""
        return bool(self.births or self.shrink or self.grow or self.delete or self.restart)

    def reduced_by(self, unmoved: Iterable[PlacementTarget]) -> Plan:
        """Return the plan with creations and growth reduced by the size that `unmoved` did not give up."""
        still = sum(_before(target) - target.replicas for target in unmoved)
        slots = max(0, still - self.spare) if self.spare is not None else MOST_REPLICAS if still else 0
        create, grow = {}, []
        for name, size in self.create.items():
            create[name] = max(0, size - slots)
            slots -= size - create[name]
        for workload, target in self.grow:
            size = max(_before(target), target.replicas - slots)
            slots -= target.replicas - size
            grow.append((workload, replace(target, replicas=size)))
        return replace(self, create=create, grow=tuple(grow))


def _before(target: PlacementTarget) -> int:
    return target.observed_replicas or 0


Admission = Callable[[LLMService, Accelerator, Remembered | None], int | None]


def plan(
    part: ServiceParts,
    decision: Decision,
    inventory: Inventory,
    *,
    pod_monitor: bool,
    inference_pools: bool = False,
    admission: Admission,
    limits: Mapping[str, Limits] = MappingProxyType({}),
    activator: bool = False,
    router: bool = False,
) -> Plan:
    """Compare the decision with the Deployments.

    `admission` gives the limit for a rollout that starts now, `limits` the limits of running engines by accelerator.
    `pod_monitor`, `inference_pools`: whether the cluster has that API. `activator`, `router`: whether one is wanted.
    """
    targets = {target.accelerator: target for target in decision.verdict.targets}
    deployed = {item.placement.accelerator: item for item in part.deployed}
    shrink, grow = _resized(targets, deployed, lt), tuple(_resized(targets, deployed, gt))
    if part.adoption is not None:  # of somebody else's Deployment, Holdfast writes the size and nothing else
        return Plan((), RenderContext(replicas=decision.verdict.replicas), {}, {}, tuple(shrink), grow, ())
    group_sets = group_set.KIND in part.watched
    listed = [option.name for option in part.spec.accelerators if option.nodes == 1 or group_sets]
    wanted = tuple(name for name in listed if name in deployed or _size(targets, name) > 0)
    retired = _retired(part, decision, deployed)
    restarted = decision.restart.leader if decision.restart else ""
    sizes = {name: item.placement.replicas for name, item in deployed.items()}
    sizes |= {target.accelerator: target.replicas for target in (*targets.values(), *(gone for _, gone in retired))}
    return Plan(
        accelerators=wanted,
        context=RenderContext(
            replicas=decision.verdict.replicas,
            pod_monitor=pod_monitor,
            inference_pools=inference_pools,
            group_sets=group_sets,
            accelerators=_facts(part, decision, {*wanted, *deployed}, inventory, admission),
            limits=tuple(sorted(limits.items())),
            holding=decision.holding,
            routed=part.router is not None and part.router.away_since is None,
            max_unavailable=decision.max_unavailable,
            prefill=_prefill_facts(part),
        ),
        create={
            deployment_name(part.spec.key.name, name): targets[name].replicas for name in wanted if name not in deployed
        },
        fronts=_fronts(part, activator, router),
        shrink=(*shrink, *retired),
        grow=grow,
        delete=tuple(_emptied(part, deployed)),
        spare=None if part.spec.max_cost_per_hour is not None else max(0, part.spec.max_replicas - sum(sizes.values())),
        restart=next((leader for leader in part.leaders if leader[0] == restarted), None),
    )


def _fronts(part: ServiceParts, activator: bool, router: bool) -> dict[str, int]:
    """Deployments of fixed size that do not exist; none where Deployments are not watched."""
    name, declared, pool = part.spec.key.name, part.service.spec.router, prefill_pool(part.service)
    sizes = {activator_name(name): 1} if activator else {}
    sizes |= {router_name(name): declared.replicas} if router and declared else {}
    sizes |= {prefill_workload(pool): pool.spec.replicas or 0} if router and pool else {}
    shown = {deployment: part.shown("Deployment", deployment) for deployment in sizes}
    return {deployment: sizes[deployment] for deployment, live in shown.items() if live is not None and not live.uid}


def _prefill_facts(part: ServiceParts) -> AcceleratorFacts:
    deployed = part.prefill.deployed if part.prefill else None
    return AcceleratorFacts(deployed=deployed.rendered if deployed else None)


def _size(targets: Mapping[str, PlacementTarget], name: str) -> int:
    return targets[name].replicas if name in targets else 0


def _resized(
    targets: Mapping[str, PlacementTarget],
    deployed: Mapping[str, ObservedDeployment],
    which: Callable[[int, int], bool],
) -> list[tuple[Workload, PlacementTarget]]:
    return [
        (item.placement.workload, targets[name])
        for name, item in sorted(deployed.items())
        if name in targets and which(targets[name].replicas, item.placement.replicas)
    ]


def _retired(
    part: ServiceParts, decision: Decision, deployed: Mapping[str, ObservedDeployment]
) -> list[tuple[Workload, PlacementTarget]]:
    """Drained Deployments whose accelerator was removed from the spec, once the listed ones serve the decided size."""
    ready = sum(
        replica.phase is ReplicaPhase.READY and part.spec.accelerator(replica.accelerator) is not None
        for replica in part.replicas
    )
    wanted = sum(
        target.replicas for target in decision.verdict.targets if part.spec.accelerator(target.accelerator) is not None
    )
    named = {target.accelerator for target in decision.verdict.targets}
    if ready < max(1, wanted):
        return []
    return [
        (item.placement.workload, PlacementTarget(name, 0, item.placement.replicas))
        for name, item in sorted(deployed.items())
        if part.spec.accelerator(name) is None and name not in named and item.placement.replicas > 0
    ]


def _emptied(part: ServiceParts, deployed: Mapping[str, ObservedDeployment]) -> list[Workload]:
    running = {replica.accelerator for replica in part.replicas}
    return [
        item.placement.workload
        for name, item in sorted(deployed.items())
        if part.spec.accelerator(name) is None and item.placement.replicas == 0 and name not in running
    ]


def _facts(
    part: ServiceParts, decision: Decision, names: set[str], inventory: Inventory, admission: Admission
) -> tuple[tuple[str, AcceleratorFacts], ...]:
    deployed = {item.placement.accelerator: item for item in part.deployed}
    declared = {accelerator.name: accelerator for accelerator in part.service.spec.accelerators}
    remembered = {name: item.rendered for name, item in deployed.items()}
    retained = {name for name in names if name in declared and _is_kept(part, declared[name], deployed.get(name))}
    tuned = {
        name: _tuned(part, decision, declared[name], remembered.get(name), name in retained)
        for name in names
        if name in declared
    }
    services = {
        name: with_limits(part.service, found.limits) if found else part.service for name, found in tuned.items()
    }
    limits = {
        name: _queue_limit(decision, service, declared[name], remembered.get(name), admission)
        for name, service in services.items()
    }
    return tuple(
        (
            name,
            _fact(
                part, decision, name, deployed.get(name), inventory, limits.get(name), tuned.get(name), name in retained
            ),
        )
        for name in sorted(names)
    )


def _queue_limit(
    decision: Decision,
    service: LLMService,
    accelerator: Accelerator,
    deployed: Remembered | None,
    admission: Admission,
) -> QueueLimit:
    """The limit of a rollout that starts now, or the one that is decided, which starts it."""
    decided = decision.queue_limit
    if decided is not None and decided.accelerator == accelerator.name:
        return decided.limit
    return QueueLimit(
        admission(service, accelerator, deployed), deployed.admission_changed_at if deployed is not None else None
    )


def _tuned(
    part: ServiceParts, decision: Decision, accelerator: Accelerator, deployed: Remembered | None, retained: bool
) -> Tuned | None:
    """Batching limits that override the declared ones: as decided, else as deployed while the engines are unchanged."""
    target, old = decision.batching, deployed.tuned if deployed else None
    if retained:
        return old
    if part.service.spec.batching.mode == "Fixed" or (target is None and old is None):
        return None
    base = revision(part.service, accelerator)
    same = old if old and old.revision == base else None
    if target is None or target.accelerator != accelerator.name:
        return same
    if old is not None and (old.limits, old.before) == (target.limits, target.before):
        return same
    declared = target.before is None and target.limits == BatchingLimits()
    return None if declared else Tuned(target.limits, target.before, base)


def _fact(
    part: ServiceParts,
    decision: Decision,
    name: str,
    deployed: ObservedDeployment | None,
    inventory: Inventory,
    limit: QueueLimit | None,
    tuned: Tuned | None,
    retained: bool,
) -> AcceleratorFacts:
    option = part.spec.accelerator(name)
    remembered = deployed.rendered if deployed else None
    rolling = deployed if deployed is not None and deployed.placement.rolling_out else None
    return AcceleratorFacts(
        surge_room=_surge_room(part, option, deployed, inventory) if option is not None else 0,
        surge_under_way=_surge_under_way(part, option, rolling, inventory) if option and rolling else None,
        cold_start_seconds=decision.cold_start_seconds,
        admission_tokens=limit.tokens if limit else None,
        admission_changed_at=limit.changed_at if limit else None,
        deployed=remembered,
        tuned=tuned,
        kept=retained,
    )


def _is_kept(part: ServiceParts, accelerator: Accelerator, deployed: ObservedDeployment | None) -> bool:
    """Whether pods keep their template despite edits, because all of them will be removed.

    Not during a rollout, whose new pods may never serve. Nor if clients and Prometheus are about to select all pods
    differently.
    """
    if not accelerator.is_left or deployed is None or deployed.rendered is None or deployed.placement.rolling_out:
        return False
    return (TLS_FOLDER in deployed.rendered.template_json) == (part.service.spec.engine.tls_secret_ref is not None)


def _surge_room(
    part: ServiceParts, option: AcceleratorOption, deployed: ObservedDeployment | None, inventory: Inventory
) -> int:
    """Return how many further replicas a rollout may have; one where it could not take a serving one's GPUs."""
    surge = rollout_surge(deployed.placement.replicas if deployed else 1, inventory.room(option).free_replicas)
    return surge or int(not _gives_way(part, option, inventory))


def _surge_under_way(
    part: ServiceParts, option: AcceleratorOption, rolling: ObservedDeployment, inventory: Inventory
) -> int:
    """Return 0 where a surge replica finds no place; else the surge grows with the size as far as GPUs are free."""
    if _unplaced(part, option.name) and (
        _gives_way(part, option, inventory) or _nodes_say_nothing(part, option, inventory)
    ):
        return 0
    surge = rolling.rendered.max_surge if rolling.rendered else 0
    return grown_surge(surge, rolling.placement.replicas, inventory.room(option).free_replicas)


def _gives_way(part: ServiceParts, option: AcceleratorOption, inventory: Inventory) -> bool:
    """Whether the next replica could use the GPUs of a serving one.

    Not on nodes that are cordoned or not ready, or that have a new taint which it does not tolerate.
    """
    serving = [replica for replica in part.replicas if replica.accelerator == option.name]
    homes = {node for replica in serving if replica.phase is ReplicaPhase.READY for node in replica.nodes}
    return not homes or bool(homes & inventory.room(option).names)


def _nodes_say_nothing(part: ServiceParts, option: AcceleratorOption, inventory: Inventory) -> bool:
    """Whether replicas run on nodes that do not offer their resource: GPUs through DRA (KEP-5004) are not counted."""
    homes = {node for replica in part.replicas if replica.accelerator == option.name for node in replica.nodes}
    there = [node for node in inventory.nodes if node.name in homes]
    return bool(there) and not any(dict(node.allocatable).get(option.resource) for node in there)


def _unplaced(part: ServiceParts, name: str) -> bool:
    return any(r.accelerator == name and r.phase is ReplicaPhase.UNSCHEDULABLE for r in part.replicas)


def fingerprint(part: ServiceParts, changes: Plan) -> Any:
    """Return everything that rendered objects depend on: equal fingerprints mean equal objects."""
    meta = part.service.metadata
    return (meta.uid, meta.generation, tuple(sorted(meta.labels.items())), changes.accelerators, changes.context)
