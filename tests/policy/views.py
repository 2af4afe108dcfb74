"""A view of one service, as the last steps of a decision see it: a test states only what is out of the ordinary."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

from holdfast.domain.cluster import Placement, QueueLimit
from holdfast.domain.decision import Action
from holdfast.domain.node_inventory import Room
from holdfast.domain.valid_traffic import judge
from holdfast.enginemodel.replica_model import ReplicaRate
from holdfast.maths.normal_belief import NormalBelief
from holdfast.policy.estimate.class_budgets import ClassState
from holdfast.policy.estimate.demand import Peaks
from holdfast.policy.estimate.forecast import Forecast
from holdfast.policy.estimate.replica_capacity import Belief, Correction
from holdfast.policy.estimate.scale_to_zero import Slumber
from holdfast.policy.estimate.scheduled_minimum import ScheduledMinimums
from holdfast.policy.estimate.slo_budget import Budget, SloState
from holdfast.policy.health.replicas import Group, group_on
from holdfast.policy.memory import Demand, ServiceMemory, Supply
from holdfast.policy.placement.choice import Choice
from holdfast.policy.placement.options import Option
from holdfast.policy.sizing.minimum import minimum_of
from holdfast.policy.sizing.proposal import Sizes
from holdfast.policy.sizing.replacement import replacement_of
from holdfast.policy.view import Load, Selection, ServiceState, View
from tests.builders import NOW, ServiceView, accelerator, replicas, service, traffic

CHAT = service().with_replicas_between(2, 10)


def view(**changes: Any) -> View:
    """A calm service with four ready replicas of 5 requests/s, watched for an hour."""
    option = changes.pop("option", accelerator("h100"))
    rate = changes.pop("rate", 5.0)
    belief = Belief(option, ReplicaRate(rate, "TPOT", True, 0.8), 1.0, changes.pop("correction", Correction()))
    chosen = Option(belief, 0, 1, 10, Room(0, frozenset(), 0), None)
    group = changes.pop("group", Group("h100", size=4, exists=True, ready=replicas(4)))
    builder = changes.pop("of", CHAT)
    calm = {
        "service": ServiceView(builder, traffic(5.0), group.ready).snapshot(),
        "known": ServiceMemory(),
        "now": NOW,
        "seen": judge(traffic(5.0)),
        "groups": (group,),
        "starting": bool(group.starting),
        "demand": Demand(),
        "supply": Supply(lead_seconds=45.0),
        "slo": SloState(0.999, 0.9, False, 1000.0),
        "forecast": Forecast(5.0, 5.0, 5.0, 0.9, 45.0),
        "backlog_requests": 0.0,
        "demand_rps": 5.0,
        "peaks": Peaks(((NOW, 5.0),), NOW - 3600.0),
        "useful": Peaks(((NOW, 5.0),), NOW - 3600.0),
        "hold_seconds": 75.0,
        "return_seconds": 0.0,
        "batch": None,
        "considered": (chosen,),
        "choice": Choice("h100"),
        "chosen": chosen,
        "group": group,
        "others": (),
        "allocation": None,
        "scheduled": ScheduledMinimums(),
        "slumber": Slumber.AWAKE,
        "idle_seconds": 0.0,
    }
    return _made_of(calm | changes)


def changed(seen: View, **changes: Any) -> View:
    """The same view, with what follows from the changes."""
    parts = (seen.state, seen.load, seen.selection, seen.minimum)
    known = {each.name: getattr(part, each.name) for part in parts for each in fields(part) if each.name != "classes"}
    return _made_of(known | {"slo": seen.state.slo} | changes)


def _made_of(given: dict[str, Any]) -> View:
    def pick(part: type) -> dict[str, Any]:
        return {each.name: given[each.name] for each in fields(part) if each.name in given}

    given = {"classes": (ClassState(given["service"].spec.slo, Budget(), given["slo"]),)} | given
    state, load = ServiceState(**pick(ServiceState)), Load(**pick(Load))
    own = group_on(state.groups, given["chosen"].name)
    selection = Selection(**{**pick(Selection), "own": own})
    minimum = minimum_of(state, load, selection, given["scheduled"], given["slumber"], given["idle_seconds"])
    return View(state, load, selection, minimum, replacement_of(state, load, selection, minimum))


STOCK = CHAT.with_ttft(2.0).with_tpot(0.1)


def stock(
    limit: QueueLimit | None,
    slowness: float = 7.0,
    *,
    deviation: float = 0.1,
    looks: int = 3,
    room: Room = Room(1, frozenset({"node"}), 1),  # noqa: B008
    placed: dict[str, Any] | None = None,
    **changes: Any,
) -> View:
    """The same with engines without the plugin, whose steps take so many times as long as expected."""
    seen = view(of=changes.pop("of", STOCK), **changes)
    correction = Correction(NormalBelief(math.log(slowness), deviation), looks=looks)
    chosen = replace(seen.selection.chosen, belief=replace(seen.selection.belief, correction=correction), room=room)
    placements = (Placement("h100", 4, queue_limit=limit, **(placed or {})),)
    return changed(seen, chosen=chosen, service=replace(seen.state.service, placements=placements))


def sized(after: int, wanted: int = 4) -> Sizes:
    """Sizes of four replicas that become so many."""
    return Sizes(Action.HOLD, 4, after, wanted, after, (), ())
