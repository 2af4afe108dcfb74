"""One service on its way through the steps of a tick: learn, propose, (allocate,) transition, explain."""

from __future__ import annotations

from dataclasses import replace

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action, BatchingTarget, Decision, Verdict
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.domain.value import value
from holdfast.enginemodel.replica_model import EngineModel
from holdfast.policy.allocation.request import request_of
from holdfast.policy.batching.controller import Batching
from holdfast.policy.capacity_request import Allocation, CapacityRequest
from holdfast.policy.estimate.flapping import remember_change
from holdfast.policy.estimate.questions import AskedModel
from holdfast.policy.explain.decision import decision_of
from holdfast.policy.explain.messages import HARD_BOUNDS
from holdfast.policy.learn import learn, with_history
from holdfast.policy.memory import Last, Memory, ServiceMemory, facts
from holdfast.policy.settings import Tick
from holdfast.policy.sizing.proposal import Sizes
from holdfast.policy.sizing.service_view import view_of, within
from holdfast.policy.transition.batching_limits import tune
from holdfast.policy.transition.pinned import held_verdict
from holdfast.policy.transition.queue_limit import follow
from holdfast.policy.transition.sizes import decide_sizes
from holdfast.policy.view import ServiceState, View


@value
class ServicePlan:
    """What a service is to do: as if it were alone when proposed, within its allocation after the transition.

    `held` is what it does instead of `sizes` where people hold its size. `request` is what it asks of the fleet, which
    follows from the sizes that it would have alone.
    """

    view: View
    sizes: Sizes
    held: Verdict | None
    request: CapacityRequest
    batching: Batching
    limits: BatchingTarget | None


def propose(state: ServiceState, tick: Tick, model: EngineModel, moves_to: str = "") -> ServicePlan:
    """Return the proposal of a service whose capacity is known."""
    view, known = view_of(state, tick, moves_to), state.known
    sizes = decide_sizes(view)
    passed = state.seen.interval_seconds if known.decided_at is None else max(0.0, tick.now - known.decided_at)
    batching, limits = tune(known.batching, state, view.load, view.selection, passed, model)
    return ServicePlan(view, sizes, held_verdict(view), request_of(view, sizes), batching, limits)


def transition(proposal: ServicePlan, allocation: Allocation | None, tick: Tick, model: EngineModel) -> ServicePlan:
    """Return what the service does within its allocation; None allocates all that it requests."""
    if allocation is None:
        return proposal
    if not allocation.moves_to:
        view = within(proposal.view, allocation)
        return replace(proposal, view=view, sizes=decide_sizes(view), held=held_verdict(view))
    state, left = proposal.view.state, allocation.leaves
    backoffs = state.supply.backoffs.given_up(left, allocation.sentence, tick.now, tick.settings)
    state = replace(state, supply=replace(state.supply, backoffs=backoffs))
    return propose(state, tick, model, allocation.moves_to)


def explain(plan: ServicePlan) -> Decision:
    """Return the decision with its reason, message, conditions and inputs."""
    view, limits = plan.view, plan.limits
    batching_changes = limits is not None and limits.reason is not None  # then engines keep their queue limit for now
    queue_limit = None if batching_changes else follow(view.state, view.load, view.selection, plan.sizes)
    return replace(decision_of(view, plan.sizes, plan.held, plan.batching), batching=limits, queue_limit=queue_limit)


RESTING = frozenset({Reason.IDLE, Reason.REQUESTS_HELD, Reason.ACTIVATOR_SILENT})
REPLACING = frozenset({Reason.ENGINE_HUNG, Reason.ENGINE_ERRORS, Reason.ENGINE_LAGGING, Reason.NODE_CLOSING})
OTHER_CAUSES = frozenset({Reason.SCHEDULED_FLOOR, Reason.CAPACITY_LIMITED, Reason.BATCH_TO_FINISH})
NOT_OF_THE_LOAD = OTHER_CAUSES | RESTING | REPLACING
"""Reasons of changes that the load did not cause: they are no flapping."""


def remembered(plan: ServicePlan, last: Last) -> ServiceMemory:
    """Return what the next tick needs to know of a service."""
    view, state, verdict = plan.view, plan.view.state, last.decision.verdict
    level = 0.0 if view.load.forecast is None else view.load.forecast.foreseen_rps
    by_load = not view.replacement.ailing_to_let_go and verdict.reason not in NOT_OF_THE_LOAD
    action = verdict.action if by_load else Action.HOLD
    return ServiceMemory(
        last=last,
        demand=state.demand,
        supply=state.supply,
        peaks=view.load.peaks,
        useful=view.load.useful,
        choice=view.selection.choice,
        flapping=remember_change(state.known.flapping, action, level),
        limited=state.held_by_people or view.minimum.schedule_rules or bool(state.held),
        short=bool(plan.sizes.limits & HARD_BOUNDS),  # then misses say nothing about headroom
        ample=view.load.batch is not None,
        batching=plan.batching,
        request=plan.request,
        allocation=view.selection.allocation,
    )


class ServicePass:
    """One service in one tick: `propose`, then `conclude` with its allocation.

    Each step runs once. Where nothing has changed, none runs and the last decision holds. `decision` is None where the
    capacity is not known yet, and where a step failed; then `memory` is what it was.
    """

    def __init__(self, service: ServiceSnapshot, memory: Memory, tick: Tick, model: AskedModel) -> None:
        self.key = service.spec.key
        self.memory = known_of(memory, service)
        self.decision: Decision | None = None
        self.promise = memory.fleet.promises.get(self.key)
        self.model = model
        self._service = service
        self._before = self.memory
        self._tick = tick.of(service.spec)
        self._facts: ServiceSnapshot
        self._proposal: ServicePlan | None = None
        self._held: Last | None = None
        self.failed = False

    @property
    def request(self) -> CapacityRequest | None:
        """What it asks for, or asked for last."""
        return self.memory.request if self._proposal is None else self._proposal.request

    def propose(self) -> None:
        """Learn and propose, unless the last decision still holds."""
        tick, self._facts = self._tick, facts(self._service)
        if self._service.history is None:
            self._held = self._before.held(self._facts, tick.now, tick.timing)
        if self._held is None:
            self._learn_and_propose()

    def _learn_and_propose(self) -> None:
        self.memory = with_history(self._before, self._service, self._tick)
        state = learn(self._service, self.memory, self.promise, self._tick, self.model)
        if state.supply.capacity.beliefs:
            self._proposal = propose(state, self._tick, self.model)

    def conclude(self, allocation: Allocation | None) -> None:
        """Decide within the allocation."""
        if self._held is not None:
            if allocation == self._before.allocation:
                self.decision = self._held.decision
                return
            self._learn_and_propose()
        if self._proposal is None:
            return
        plan = transition(self._proposal, allocation, self._tick, self.model)
        self.decision = explain(plan)
        # The next tick looks at what became of an edit.
        until = self._tick.now if plan.view.state.edited else plan.view.minimum.scheduled.change_at
        self.memory = remembered(plan, Last(self.decision, self._facts, self._tick.now, until))

    def fail(self) -> None:
        """Give the service up for this tick: nothing is decided, and nothing is learned."""
        self.decision, self.memory, self._proposal, self.failed = None, self._before, None, True


def known_of(memory: Memory, service: ServiceSnapshot) -> ServiceMemory:
    """Return what is remembered of this very object: another one of its name has nothing in common with it."""
    known = memory.services.get(service.spec.key)
    if known is None or (known.spec is not None and known.spec.uid != service.spec.uid):
        return ServiceMemory()
    return known
