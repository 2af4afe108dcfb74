"""How many replicas an eviction may leave unavailable."""

from __future__ import annotations

from holdfast.policy.view import View


def max_unavailable(view: View, decided: int) -> int:
    """Return maxUnavailable of the disruption budget; `decided` replicas are wanted.

    | serving replicas                                  | evictions                                      |
    | the last one                                      | none: its node must be cordoned first          |
    | the last one goes with its node, a successor comes| none, until the successor serves               |
    | any goes with its node, no successor comes        | one at a time, whatever else is unavailable    |
    | the last one, on a spot node                      | one: the node does not wait                    |
    | several                                           | one at a time, while all others serve          |
    """
    serving = [replica for group in view.groups for replica in group.ready]
    closing = view.supply.closing
    comes = closing is not None and view.now < closing.until and (view.starting or decided > view.size)
    if closing is not None and not comes and not view.going_to_let_go:
        return 1 + max(0, view.size - len(serving))
    spot = {option.name for option in view.spec.accelerators if option.spot}
    last = min(len(serving), decided) == 1 and not any(replica.accelerator in spot for replica in serving)
    return 0 if last else 1
