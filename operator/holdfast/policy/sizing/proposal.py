"""How many replicas of the chosen accelerator a service proposes, and what became of the proposal."""

from __future__ import annotations

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action, PlacementTarget
from holdfast.domain.value import value
from holdfast.policy.estimate.demand import replicas_for
from holdfast.policy.view import Bound, View


@value
class Sizes:
    """What every accelerator's size becomes, and what bounded it.

    `wanted` replicas of the chosen accelerator were proposed before the guards, `goal` are to run of it in the end.
    """

    action: Action
    before: int
    after: int
    wanted: int
    goal: int
    bounds: tuple[Bound, ...]
    targets: tuple[PlacementTarget, ...]

    @property
    def limits(self) -> frozenset[Reason]:
        return frozenset([bound.reason for bound in self.bounds])


def propose(view: View) -> int:
    """Replicas of the chosen accelerator, before any guard.

    More at once when the demand asks for it; fewer only when they also carry what the estimate may be wrong by. Hung
    ones first make room: they take their share of the requests, and accelerators.
    """
    load, selection, minimum, replacement = view.load, view.selection, view.minimum, view.replacement
    before, spare = selection.group.baseline, replacement.spare
    if minimum.asleep:
        return 0
    if leaving := replacement.leaving.total():
        return before - leaving
    if load.forecast is None or load.demand_rps is None or not selection.belief.sized:
        least = minimum.least.replicas + spare
        return max(before, selection.chosen.replicas, minimum.waking, least, replacement.with_successor)
    needed = max(replacement.needed, replacement.with_successor)
    if needed >= before:
        return needed
    safe = replicas_for(load.forecast.releasable_rps, selection.belief.rate_rps) + spare
    return min(before, max(needed, safe))
