"""From the running replicas to the goal: which sources stay, and which targets start.

A source is a replica beyond the goal, a target one of the goal. Sources stay until all targets that are needed serve.
Where the limits have no room for a target next to the sources, one source goes first (break before make). The next one
goes only after its target serves. The last replica that serves stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.domain.value import value
from holdfast.policy.health.replicas import Group
from holdfast.policy.placement.allowance import Allowance


@value
class Migration:
    """`goal` replicas are to run by accelerator; `needed` of them must serve before all sources go.

    `targets` are the groups of the goal, `sources` the groups beyond it, and `allowance` what may run at one time.
    At least `on_demand` replicas of the `regular` accelerators are to serve. Sources of a `forbidden` accelerator
    stay only while they serve. `unavailable` accelerators are in backoff.
    With `stand_ins_only` at most as many sources stay as targets are missing.
    """

    goal: Mapping[str, int]
    needed: Mapping[str, int]
    targets: Sequence[Group]
    sources: Sequence[Group]
    allowance: Allowance
    regular: frozenset[str] = frozenset()
    on_demand: int = 0
    forbidden: frozenset[str] = frozenset()
    unavailable: frozenset[str] = frozenset()
    stand_ins_only: bool = False

    @property
    def serving(self) -> Counter[str]:
        """Targets that serve."""
        return Counter({group.accelerator: len(group.ready) for group in self.targets})

    @property
    def lacking(self) -> int:
        """Targets that are needed and do not serve yet."""
        return max(0, sum(self.needed.values()) - self.serving.total())

    @property
    def in_turn(self) -> list[str]:
        """The accelerators that lack targets, in the order in which these start: first where none fails to."""
        failing = {group.accelerator for group in self.targets if group.useless}
        serving = self.serving
        lacking = [name for name, count in self.goal.items() if count > serving[name]]
        return sorted(lacking, key=lambda name: (name in self.unavailable, name in failing, name not in self.needed))

    @property
    def may_stay(self) -> dict[str, int]:
        """Sources that may stay; on forbidden accelerators only serving ones."""
        found = {}
        for group in self.sources:
            useful = len(group.ready) if group.accelerator in self.forbidden else group.useful
            found[group.accelerator] = min(useful, self.allowance.lasting.get(group.accelerator, useful))
        return found

    def served_with(self, kept: Mapping[str, int]) -> int:
        """Return the replicas that serve if so many sources stay."""
        sources = sum(min(kept[group.accelerator], len(group.ready)) for group in self.sources)
        return self.serving.total() + sources

    def on_demand_with(self, kept: Mapping[str, int]) -> int:
        """Return how many of these are not on spot nodes."""
        targets, sources = ([g for g in each if g.accelerator in self.regular] for each in (self.targets, self.sources))
        return replace(self, targets=targets, sources=sources).served_with(kept)

    def has_room(self, kept: Mapping[str, int]) -> bool:
        """Return whether another target may run next to so many sources and the existing targets."""
        there = Counter(kept) + Counter({group.accelerator: group.size for group in self.targets})
        return any(self.allowance.more(name, there) > 0 for name in self.in_turn)

    def may_go(self, kept: Mapping[str, int], fewer: Mapping[str, int]) -> bool:
        """Return whether the service still serves, or must stop for a moment to move at all."""
        gone = {name for name, count in fewer.items() if count < kept[name]}
        idle = self.allowance.replicas < 2 or not self.served_with(kept)
        return self.served_with(fewer) > 0 or (gone <= self.forbidden and idle)


def staying(migration: Migration) -> dict[str, int]:
    """Return how many sources of each accelerator stay for now."""
    kept = migration.may_stay
    if not migration.lacking:
        return _for_on_demand(migration, kept)
    while fewer := _one_less(migration, kept):
        kept = fewer
    return kept


def _for_on_demand(migration: Migration, kept: Mapping[str, int]) -> dict[str, int]:
    """All targets serve: only sources that scaling.minOnDemand asks for stay."""
    found = dict.fromkeys(kept, 0)
    for name in kept:
        if name in migration.regular:
            found[name] = min(kept[name], max(0, migration.on_demand - migration.on_demand_with(found)))
    return found


def _one_less(migration: Migration, kept: Mapping[str, int]) -> dict[str, int] | None:
    """One source less, where no target fits next to the sources and none starts, or where it replaces no target."""
    spare = migration.stand_ins_only and sum(kept.values()) > migration.lacking
    comes = any(group.size > len(group.ready) for group in migration.targets)
    if not spare and (comes or not migration.in_turn or migration.has_room(kept)):
        return None
    ones = [{**kept, name: count - 1} for name, count in kept.items() if count > 0]
    fewer = [each for each in ones if migration.may_go(kept, each)]
    return min(fewer, key=lambda each: _missed(migration, kept, each), default=None)


def _missed(migration: Migration, kept: Mapping[str, int], fewer: Mapping[str, int]) -> tuple[bool, bool, float]:
    """What goes first: not what scaling.minOnDemand asks for, what does not serve, what costs most."""
    off_spot = migration.on_demand_with(fewer) < min(migration.on_demand, migration.on_demand_with(kept))
    serves = migration.served_with(fewer) < migration.served_with(kept)
    return off_spot, serves, migration.allowance.cost(fewer) - migration.allowance.cost(kept)


def growing(migration: Migration, kept: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes: sources that stay, serving targets, and as many more targets as the limits allow."""
    allowed = _for_the_first(migration, kept)
    goal, sizes = Counter(migration.goal), Counter(kept) + (migration.serving & Counter(migration.goal))
    requested = goal & Counter({group.accelerator: group.size for group in migration.targets})
    first = migration.in_turn
    order = [*first, *(name for name in goal if name not in first)]
    for most in (requested, goal):
        for name in order:
            more = most[name] + kept.get(name, 0) - sizes[name]
            sizes[name] += max(0, min(more, allowed.more(name, sizes)))
    return sizes


def _for_the_first(migration: Migration, kept: Mapping[str, int]) -> Allowance:
    """Let the budget pay for the first target next to the last serving source, as long as a target is available."""
    allowed, names = migration.allowance, [name for name in migration.in_turn if name not in migration.unavailable]
    last = migration.served_with(kept) == 1 and not migration.serving.total()
    if allowed.dollars_per_hour is None or not migration.lacking or not names or not last:
        return allowed
    first = min(allowed.price(name) for name in names)
    return replace(allowed, dollars_per_hour=max(allowed.dollars_per_hour, allowed.cost(kept) + first))
