"""The one pure function behind every size: snapshot and memory in, decisions and memory out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from holdfast.domain.decision import Decision
from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import Snapshot
from holdfast.enginemodel.replica_model import EngineModel, StepLawModel
from holdfast.policy.allocation.fleet import allocate
from holdfast.policy.capacity_request import Allocation
from holdfast.policy.estimate.questions import AskedModel, Quota
from holdfast.policy.memory import Fleet, FleetContext, Memory, ServiceMemory
from holdfast.policy.settings import PolicySettings, Tick, tick_of
from holdfast.policy.steps import ServicePass

DEFAULTS = PolicySettings()
STEP_LAW = StepLawModel()


def decide(
    snapshot: Snapshot,
    memory: Memory,
    settings: PolicySettings = DEFAULTS,
    model: EngineModel = STEP_LAW,
    failed: Callable[[ServiceKey, Exception], None] | None = None,
    unshared: Callable[[Exception], None] | None = None,
    recorded: Callable[[ServiceKey, FleetContext], None] | None = None,
) -> tuple[tuple[Decision, ...], Memory]:
    """Decide for all services, in order of their keys whatever the order of the snapshot.

    Each service learns and proposes; policy.allocation decides who gives way where accelerators do not suffice for
    all; then each service moves within its allocation, and explains.

    Pure: the same snapshot and memory give the same answer. Services that are gone are forgotten. Where many services
    come at once, some have to wait for the engine model, and then their decision for a later tick.

    `failed` gets a service that cannot be decided on, instead of an exception: all others are decided. `unshared` gets
    the exception where accelerators cannot be allocated: each service keeps its last allocation. `recorded` gets what
    the decision about each service depends on of the rest of the fleet.
    """
    tick, quota = tick_of(snapshot, settings), Quota()
    passes = [
        ServicePass(each, memory, tick, AskedModel(model, quota))
        for each in sorted(snapshot.services, key=lambda each: each.spec.key)
    ]
    first = int(snapshot.now) % max(1, len(passes))
    in_turn = passes[first:] + passes[:first]  # the first one gets an answer of the engine model first
    for each in in_turn:
        _attempt(each, each.propose, failed)
    allocations, fleet = _allocated(passes, memory.fleet, snapshot, tick, unshared)
    for each in in_turn:
        allocation = allocations.get(each.key)
        if not each.failed and _attempt(each, partial(each.conclude, allocation), failed) and recorded:
            recorded(each.key, FleetContext(allocation, each.promise, tuple(each.model.unanswered)))
    decisions = tuple([each.decision for each in passes if each.decision is not None])
    return decisions, Memory({each.key: each.memory for each in passes}, fleet)


def decide_alone(
    snapshot: Snapshot,
    memory: ServiceMemory,
    context: FleetContext,
    settings: PolicySettings = DEFAULTS,
    model: EngineModel = STEP_LAW,
) -> tuple[Decision | None, ServiceMemory]:
    """Decide about the only service of a snapshot as a tick did that gave it this context.

    Raises:
        ValueError: The snapshot has no service, or several.
    """
    (service,) = snapshot.services
    key = service.spec.key
    promises = {} if context.promise is None else {key: context.promise}
    before = Memory({key: memory}, Fleet(promises=promises))
    alone = ServicePass(service, before, tick_of(snapshot, settings), AskedModel(model, unanswered=context.unanswered))
    alone.propose()
    alone.conclude(context.allocation)
    return alone.decision, alone.memory


def _attempt(
    each: ServicePass, step: Callable[[], None], failed: Callable[[ServiceKey, Exception], None] | None
) -> bool:
    """Whether a step of a service went well; its failure is no other service's."""
    try:
        step()
    except Exception as error:
        if failed is None:
            raise
        each.fail()
        failed(each.key, error)
        return False
    return True


def _allocated(
    passes: Sequence[ServicePass],
    fleet: Fleet,
    snapshot: Snapshot,
    tick: Tick,
    unshared: Callable[[Exception], None] | None,
) -> tuple[dict[ServiceKey, Allocation], Fleet]:
    """Who has to give way; each service its last allocation where that cannot be worked out."""
    requests = {each.key: request for each in passes if (request := each.request) is not None}
    try:
        nodes, services, caps = tick.inventory, snapshot.services, snapshot.gpu_caps
        return allocate(requests, fleet, nodes, tick.now, tick.settings, services, caps)
    except Exception as error:
        if unshared is None:
            raise
        unshared(error)
        return {each.key: last for each in passes if (last := each.memory.allocation)}, fleet
