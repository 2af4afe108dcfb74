"""From the replicas that there are to those of a goal: which of the old ones stay until new ones serve.

The same way for a size that the objectives ask for and for one that people have fixed. All accelerators that are being
left are looked at together, against what may run at one time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from holdfast.domain.value import value
from holdfast.policy.health.replicas import Group
from holdfast.policy.placement.allowance import Allowance


@value
class Migration:
    """`here` are the replicas of the `goal`, of which so many are `needed` by accelerator; `left` those beyond it.

    `worth`: how many of the goal's replicas one of an accelerator stands for, as far as it is known. Of the `regular`
    accelerators `on_demand` replicas must serve. The `forbidden` ones have nobody to stay for; those `in_the_way` hold
    the nodes that the new ones wait for. Where the size is `exact`, no more stay than stand for those that lack: what
    scaling.minOnDemand asks for is part of the goal. Those that are `out` could not be had a short while ago.
    """

    goal: Mapping[str, int]
    here: Sequence[Group]
    needed: Mapping[str, int]
    left: Sequence[Group]
    allowance: Allowance
    worth: Mapping[str, float] = field(default_factory=dict)
    regular: frozenset[str] = frozenset()
    on_demand: int = 0
    forbidden: frozenset[str] = frozenset()
    in_the_way: frozenset[str] = frozenset()
    exact: bool = False
    out: frozenset[str] = frozenset()

    @property
    def serving(self) -> int:
        return sum(len(group.ready) for group in self.here)

    @property
    def lacking(self) -> int:
        """Replicas of the goal that do not serve yet."""
        return max(0, sum(self.needed.values()) - self.serving)

    @property
    def vain(self) -> bool:
        """Nothing else can be had for now."""
        return self.out >= frozenset(self.needed)

    @property
    def next_ones(self) -> list[str]:
        """Accelerators of which the next replica may come: those where one fails to come only if there are no others.

        Whoever sends replicas away for one that fails does so once. None where the goal asks for no more.
        """
        ready = {group.accelerator: len(group.ready) for group in self.here}
        useless = {group.accelerator for group in self.here if group.useless}
        lacking = [name for name, count in self.needed.items() if min(count, self.goal[name]) > ready.get(name, 0)]
        can_be_had = [name for name in lacking if name not in self.out]
        return [name for name in can_be_had if name not in useless] or can_be_had or lacking

    @property
    def placed(self) -> dict[str, int]:
        """Replicas of the goal that keep their place before the next ones: those that serve, or may come to."""
        fails = self.out.union(self.next_ones)
        return {
            group.accelerator: len(group.ready) + (0 if group.accelerator in fails else len(group.useless))
            for group in self.here
        }

    def served_with(self, kept: Mapping[str, int]) -> int:
        """Replicas that serve if so many of those left stay."""
        return self.serving + sum(min(kept[group.accelerator], len(group.ready)) for group in self.left)

    def regular_with(self, kept: Mapping[str, int]) -> int:
        """The same, of those off spot."""
        here = sum(len(group.ready) for group in self.here if group.accelerator in self.regular)
        left = (group for group in self.left if group.accelerator in self.regular)
        return here + sum(min(kept[group.accelerator], len(group.ready)) for group in left)

    def has_room(self, kept: Mapping[str, int]) -> bool:
        """Whether at least one more of the goal, if there is one, may run beside so many."""
        beside, coming = _both(kept, self.placed), self.next_ones
        return not coming or any(self.allowance.more(name, beside) > 0 for name in coming)

    def has_all_room(self, kept: Mapping[str, int]) -> bool:
        """Whether all of the goal may."""
        there = {group.accelerator: group.size for group in self.here}
        asked = {name: min(count, self.goal[name]) for name, count in self.needed.items()}
        all_of_it = {name: max(there.get(name, 0), asked.get(name, 0)) for name in {**there, **asked}}
        return self.allowance.takes(_both(kept, all_of_it))

    def stands_for(self, kept: Mapping[str, int]) -> float:
        """Replicas of the goal that so many carry as much as."""
        return sum(count * self.worth.get(name, 0.0) for name, count in kept.items())

    def suffices(self, kept: Mapping[str, int]) -> bool:
        """Whether those that lack are stood for."""
        return self.stands_for(kept) >= self.lacking - 1e-9

    def may_go(self, kept: Mapping[str, int], fewer: Mapping[str, int]) -> bool:
        """The last one that serves stays, but where it is forbidden and one alone is allowed.

        Where nobody serves, those stay that are about to, but for forbidden ones.
        """
        if self.served_with(fewer):
            return True
        gone = {name for name, count in fewer.items() if count < kept[name]}
        return gone <= self.forbidden and (self.allowance.replicas < 2 or not self.served_with(kept))


def staying(migration: Migration) -> dict[str, int]:
    """Return how many replicas of the accelerators that are being left stay for now.

    All until those of the goal serve, where both may run at one time; else at least as many as stand for those that
    lack, and fewer where these would leave no room for anything to come. Once the goal serves, scaling.minOnDemand is
    waited for.
    """
    if not migration.lacking:
        return _until_enough_are_regular(migration)
    kept = {group.accelerator: group.useful for group in migration.left}
    while fewer := _one_less(migration, kept):
        kept = fewer
    return _off_their_nodes(migration, kept)


def _until_enough_are_regular(migration: Migration) -> dict[str, int]:
    kept = {group.accelerator: 0 for group in migration.left}
    for group in migration.left:
        if group.accelerator in migration.regular and not migration.exact:
            kept[group.accelerator] = min(len(group.ready), max(0, migration.on_demand - migration.regular_with(kept)))
    return kept


def _one_less(migration: Migration, kept: Mapping[str, int]) -> dict[str, int] | None:
    """The one to be missed least goes, as long as nothing could come, or not all and the others suffice."""
    ones = [{**kept, name: count - 1} for name, count in kept.items() if count > 0]
    blocked, crowded = not migration.has_room(kept), migration.exact or not migration.has_all_room(kept)
    fewer = [
        each for each in ones if (blocked or (crowded and migration.suffices(each))) and migration.may_go(kept, each)
    ]
    return min(fewer, key=lambda each: _missed(migration, kept, each), default=None)


def _missed(migration: Migration, kept: Mapping[str, int], fewer: Mapping[str, int]) -> tuple[bool, bool, bool, float]:
    """Those off spot that scaling.minOnDemand asks for most, then what serves, what makes no room, what costs least."""
    off_spot = migration.regular_with(fewer) < min(migration.on_demand, migration.regular_with(kept))
    serves = migration.served_with(fewer) < migration.served_with(kept)
    saved = migration.allowance.cost(kept) - migration.allowance.cost(fewer)
    lost = migration.stands_for(kept) - migration.stands_for(fewer)
    return off_spot, serves, not migration.has_room(fewer), -saved / lost if lost > 0.0 else 0.0


def _off_their_nodes(migration: Migration, kept: Mapping[str, int]) -> dict[str, int]:
    """One less on the nodes that the new ones wait for; whether they get it nobody knows, so the last one stays."""
    for group in migration.left:
        name, ready = group.accelerator, len(group.ready)
        fewer = {**kept, name: min(kept[name], ready - 1)}
        if name in migration.in_the_way and ready and migration.served_with(fewer):
            return fewer
    return dict(kept)


def spendable(migration: Migration, kept: Mapping[str, int]) -> Allowance:
    """What may be spent beside those that stay: the last one that serves stays beside the first that replaces it."""
    dollars = migration.allowance.dollars_per_hour
    if (
        dollars is None
        or migration.vain
        or not migration.lacking
        or migration.serving
        or migration.served_with(kept) != 1
    ):
        return migration.allowance
    first = min((migration.allowance.price(name) for name in migration.next_ones), default=0.0)
    return replace(migration.allowance, dollars_per_hour=max(dollars, migration.allowance.cost(kept) + first))


def growing(migration: Migration, kept: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes that follow: what stays, what serves of the goal, and as much more of it as may run beside.

    Of that what is coming first, then what the goal needs first.
    """
    money, placed = spendable(migration, kept), migration.placed
    coming = {group.accelerator: placed[group.accelerator] + _coming(group) for group in migration.here}
    own = {name: min(count, placed.get(name, 0)) for name, count in migration.goal.items()}
    order = dict.fromkeys((*migration.next_ones, *migration.needed, *migration.goal))
    for most in (coming, migration.goal):
        for name in order:
            sizes = _both(kept, own)
            more = min(migration.goal[name], most.get(name, 0)) - own[name]
            own[name] += max(0, min(more, money.more(name, sizes)))
    return _both(kept, own)


def _coming(group: Group) -> int:
    return max(0, group.size - len(group.ready) - len(group.useless))


def _both(kept: Mapping[str, int], own: Mapping[str, int]) -> dict[str, int]:
    return {name: kept.get(name, 0) + own.get(name, 0) for name in {**own, **kept}}
