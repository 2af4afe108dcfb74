"""Places that a service hands over: what it leaves on nodes that the next ones may have, for those one by one."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.service import AcceleratorOption
from holdfast.domain.value import value
from holdfast.policy.health.replicas import Group
from holdfast.policy.view import View


@value
class FreedSlots:
    """Replicas of the accelerators that are left: `kept` beside the next ones, or on places that those take one by one.

    Of these `staying` serve for now, and the others of the `freed` ones go. Beyond the goal `surplus` ones are kept.
    """

    kept: tuple[tuple[AcceleratorOption, int], ...]
    staying: int = 0
    freed: int = 0
    surplus: int = 0
    handed: bool = False


def freed_slots(view: View, stays: Mapping[AcceleratorOption, int], goal: int, placed: int) -> FreedSlots:
    """Return whose places the next ones take: of those that stay for now as many as are to run in the end.

    However far a switch has come, it asks for the same: else what others are granted would change with it, and with
    that again how far it comes. A single replica does not go before another one has a place: that it has to find
    elsewhere, but where it may not run beside it at all.
    """
    leaving = _leaving(view, stays)
    groups = [view.group_of(option.name) for option, _ in leaving]
    handing = [group for group in groups if group.placed and _hands_over(view, group)]
    there = placed + sum(group.placed for group in handing)
    if not handing or (there < 2 <= view.spec.max_replicas):
        return FreedSlots(tuple([part for part in leaving if part[1]]))
    here = {group.accelerator: _here(view, group.accelerator) for group in handing}
    stay = {option.name: min(replicas, here.get(option.name, (0, 0))[0]) for option, replicas in leaving}
    staying = min(max(0, goal), sum(stay.values()))
    surplus = sum(stay.values()) - staying
    freed = sum(serving + draining for serving, draining in here.values()) - surplus
    return FreedSlots(_less(leaving, stay, staying), staying, freed, surplus, handed=True)


def _less(
    leaving: tuple[tuple[AcceleratorOption, int], ...], stay: Mapping[str, int], staying: int
) -> tuple[tuple[AcceleratorOption, int], ...]:
    """Without so many of those that stay on places which the next ones take."""
    kept = []
    for option, replicas in leaving:
        taken = min(stay[option.name], staying)
        staying -= taken
        kept.append((option, replicas - taken))
    return tuple([part for part in kept if part[1]])


def _leaving(view: View, stays: Mapping[AcceleratorOption, int]) -> tuple[tuple[AcceleratorOption, int], ...]:
    """Return how many stay of each listed accelerator that is left, those included of which none does."""
    names = {group.accelerator for group in view.others}.difference(view.paired)
    return tuple((option, stays.get(option, 0)) for option in view.spec.accelerators if option.name in names)


def _here(view: View, accelerator: str) -> tuple[int, int]:
    """Return its replicas on nodes that the next ones may have, and those there that drain."""
    names = view.chosen.room.names
    pods = [pod for pod in view.service.replicas if pod.accelerator == accelerator and pod.node in names]
    going = sum(pod.phase is ReplicaPhase.DRAINING for pod in pods)
    return len(pods) - going, going


def _hands_over(view: View, group: Group) -> bool:
    """Whether its replicas leave to the next ones just what those need: forbidden, alike, and on their nodes."""
    option, chosen = view.option(group.accelerator), view.chosen
    if option is None or not view.is_forbidden(group):
        return False
    old, new = option.belief.option, chosen.belief.option
    alike = (old.resource, old.gpus_per_replica) == (new.resource, new.gpus_per_replica)
    return alike and option.room.names <= chosen.room.names
