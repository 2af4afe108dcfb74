"""What moves from the accelerators that are being left to those that were chosen, or that a fixed size is shared among.

How it moves is the same for both (policy.transition.make_before_break).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from holdfast.policy.estimate.demand import MOST_REPLICAS
from holdfast.policy.health.replicas import Group, group_on
from holdfast.policy.placement.allowance import Allowance, allowance
from holdfast.policy.placement.on_demand_pair import parted
from holdfast.policy.placement.options import Option
from holdfast.policy.transition.make_before_break import Migration, staying
from holdfast.policy.view import View


def chosen_migration(view: View, goal: Mapping[str, int]) -> Migration:
    """What moves to the accelerator that was chosen and its pair, as far as the demand needs them.

    Those beyond the goal stay for the ones that its pair lacks.
    """
    groups, pair = view.groups, view.chosen.pair
    here, rest = parted(group_on(groups, view.chosen.name), goal[view.chosen.name])
    left = [group for group in _with_laggard(view, view.others) if not _is_vain(view, group)]
    forbidden = {group.accelerator for group in left if view.is_forbidden(group)}
    both: tuple[Group, ...] = (here,)
    if pair is not None:
        other, _ = parted(group_on(groups, pair.accelerator), goal[pair.accelerator])
        both = here, other
        stay, _ = parted(rest, max(0, goal[pair.accelerator] - len(other.ready)))
        if stay.ready:
            left.append(_serving_ones(stay, draining=here.draining))
            forbidden.add(stay.accelerator)
    needed = _needed(view, left)
    out = _out(view, needed)
    return Migration(
        goal=goal,
        here=both,
        needed=needed,
        left=left,
        allowance=_on_the_way(view, min(view.spec.max_replicas, _most_on_the_way(view)), out >= frozenset(needed)),
        worth=_worth(view, left),
        regular=_regular(view),
        on_demand=0 if view.asleep else view.spec.min_on_demand,
        forbidden=frozenset(forbidden),
        in_the_way=_in_the_way(view, both, left) & forbidden,
        out=out,
    )


def _needed(view: View, left: Sequence[Group]) -> dict[str, int]:
    """Replicas of the chosen accelerator and its pair that must serve before others go.

    What those hold that hand over their places is a part of what the service is granted.
    """
    asked = min(view.chosen.replicas, _to_be_had(view, view.chosen, left))
    if view.chosen.pair is None:
        asked = min(asked, most_granted(view))
    parts = view.chosen.parts_of(0 if view.asleep else max(1, asked))
    return dict(reversed(parts.items()))


def staying_meanwhile(view: View, migration: Migration) -> dict[str, int]:
    """Return how many replicas of each accelerator that is being left stay for now; where it is not seen, all do.

    Nor does any go while metrics are in doubt, but where nobody serves of whom there could be some.
    """
    if not all(group.observed for group in view.groups):
        return {group.accelerator: group.size for group in view.others}
    kept = {group.accelerator: 0 for group in view.others}
    rolling = any(group.rolling_out for group in migration.left if group.accelerator not in migration.forbidden)
    if rolling or (view.ready and not view.seen.fresh):
        return kept | {group.accelerator: group.useful for group in migration.left}
    return kept | staying(migration)


def pinned_migration(view: View, goal: Mapping[str, int]) -> Migration:
    """What moves to the accelerators among which a fixed size is shared; of what is left only what serves stays."""
    groups = [group for group in _with_laggard(view, view.groups) if group.exists]
    halves = [parted(group, goal.get(group.accelerator, 0)) for group in groups]
    here = tuple([group for group, _ in halves if group.accelerator in goal])
    left = tuple([_serving_ones(rest, draining=group.draining) for group, rest in halves if rest.ready])
    to_be_had = {option.name: _to_be_had(view, option, left) for option in view.considered}
    out = _out(view, goal)
    return Migration(
        goal=goal,
        here=here,
        needed={name: min(count, to_be_had.get(name, count)) for name, count in goal.items()},
        left=left,
        allowance=_on_the_way(view, max(view.spec.max_replicas, sum(goal.values())), out >= frozenset(goal)),
        worth={group.accelerator: 1.0 for group in left},
        regular=_regular(view),
        on_demand=view.spec.min_on_demand,
        forbidden=frozenset([group.accelerator for group in left]),
        in_the_way=_in_the_way(view, here, left),
        exact=True,
        out=out,
    )


def _serving_ones(group: Group, draining: int) -> Group:
    return Group(group.accelerator, len(group.ready), exists=True, ready=group.ready, draining=draining)


def _with_laggard(view: View, groups: Sequence[Group]) -> list[Group]:
    """The same, with one that lags as one that serves: it answers, and need not go before the others do."""
    if not view.learned.straggler.sure:
        return list(groups)
    return [replace(group, ready=group.ready + group.ailing, ailing=()) for group in groups]


def _is_vain(view: View, group: Group) -> bool:
    """None of it serves, and none is about to."""
    return not group.ready and (not group.coming or view.in_backoff(group.accelerator))


def _to_be_had(view: View, option: Option, left: Sequence[Group]) -> int:
    """Most replicas that may come: where more proved short, those that are there and on nodes of those left.

    Not while another accelerator is about to be chosen, of which more may come.
    """
    if not option.full or view.choice.better:
        return option.allowed
    return option.most + sum(replica.node in option.room.names for group in left for replica in group.ready)


def _on_the_way(view: View, replicas: int, vain: bool) -> Allowance:
    """The budget, or what is there already costs where that is more: whoever lowers a budget wants nobody sent away.

    Only as long as something else may come.
    """
    allowed = replace(allowance(view.spec), replicas=replicas)
    if allowed.dollars_per_hour is None or vain:
        return allowed
    there = {group.accelerator: group.size - len(group.short) for group in view.groups}
    return replace(allowed, dollars_per_hour=max(allowed.dollars_per_hour, allowed.cost(there)))


def _out(view: View, goal: Collection[str]) -> frozenset[str]:
    return frozenset([name for name in goal if view.in_backoff(name)])


def _regular(view: View) -> frozenset[str]:
    return frozenset([option.name for option in view.spec.accelerators if not option.spot])


def most_granted(view: View) -> int:
    """Replicas that may be there while places are handed over and others want them too."""
    most = None if view.allocation is None else view.allocation.most
    return MOST_REPLICAS if most is None else max(1, most)


def _most_on_the_way(view: View) -> int:
    """The last one that serves stays until the first of the next ones does, however little is granted."""
    return max(1 if view.migration_paused else 2, most_granted(view))


def _in_the_way(view: View, here: Sequence[Group], left: Sequence[Group]) -> frozenset[str]:
    """Accelerators all replicas of which are on nodes that others wait for in vain, while nothing comes or goes."""
    if view.migration_paused or any(group.coming for group in here) or any(group.draining for group in left):
        return frozenset()
    short = {group.accelerator for group in here if group.short}
    homes = frozenset([replica.node for group in left for replica in group.ready])
    waiting = [option for option in view.considered if option.name in short and _would_take(view, option, homes)]
    nodes = {node for option in waiting for node in option.room.names}
    return frozenset([g.accelerator for g in left if g.ready and all(replica.node in nodes for replica in g.ready)])


def _would_take(view: View, option: Option, homes: frozenset[str]) -> bool:
    """Whether replicas that wait for nodes would make something of a place: they did so of the last that was given up.

    Not where there is room beside those to be given up: then they wait for something else. Nor while more of them fail
    than serve. What others got, or one that failed, is tried again after a while.
    """
    backoff = view.learned.backoffs.active(option.name, view.now)
    own, others = view.group_of(option.name), [group for group in view.groups if group.accelerator != option.name]
    fails = len(own.useless) - len(own.short)
    if backoff is None or fails > len(own.ready) or option.room.free_on & homes:
        return False
    there = [other for group in others if group.placed and (other := view.option(group.accelerator))]
    new = option.belief.option.gpus_per_replica
    worth = new / min([other.belief.option.gpus_per_replica for other in there], default=new)
    lost = worth * (backoff.own - own.to_serve) + backoff.elsewhere - sum(group.to_serve for group in others)
    return lost < worth


def _worth(view: View, left: Sequence[Group]) -> dict[str, float]:
    """How many replicas of the chosen accelerator one of another stands for, as far as it is known."""
    found: dict[str, float] = {}
    for group in left:
        belief = view.learned.capacity.belief(group.accelerator)
        if belief is not None and belief.rate_rps > 0.0 and view.belief.rate_rps > 0.0:
            found[group.accelerator] = belief.rate_rps / view.belief.rate_rps
    return {name: worth for name, worth in found.items() if math.isfinite(worth)}
