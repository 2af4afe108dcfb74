"""How many replicas an eviction may leave unavailable."""

from __future__ import annotations

from holdfast.policy.view import Replacement, ServiceState


def max_unavailable(state: ServiceState, replacement: Replacement, decided: int) -> int:
    """Return maxUnavailable of the disruption budget; `decided` replicas are wanted.

    | serving replicas                                  | evictions                                      |
    | the last one                                      | none: its node must be cordoned first          |
    | the last one goes with its node, a successor comes| none, until the successor serves               |
    | any goes with its node, no successor comes        | one at a time, whatever else is unavailable    |
    | the last one, on a spot node                      | one: the node does not wait                    |
    | several                                           | one at a time, while all others serve          |
    """
    serving = [replica for group in state.groups for replica in group.ready]
    closing = state.supply.closing
    comes = closing is not None and state.now < closing.until and (state.starting or decided > state.size)
    if closing is not None and not comes and not replacement.going_to_let_go:
        return 1 + max(0, state.size - len(serving))
    spot = {option.name for option in state.spec.accelerators if option.spot}
    last = min(len(serving), decided) == 1 and not any(replica.accelerator in spot for replica in serving)
    return 0 if last else 1
