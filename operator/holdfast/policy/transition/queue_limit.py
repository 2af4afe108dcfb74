"""The queue limit of engines without the plugin follows the measured step times.

vLLM reads the limit at start, so that another limit is a rollout. Source: docs/designs/0022-queue-limit-follows.md.
"""

from __future__ import annotations

import math

from holdfast.domain.cluster import QueueLimit
from holdfast.domain.decision import QueueLimitTarget
from holdfast.enginemodel.replica_model import queue_limit_tokens
from holdfast.policy.estimate.replica_capacity import limited_to
from holdfast.policy.sizing.proposal import Sizes
from holdfast.policy.view import Load, Selection, ServiceState

SURE = 0.2
"""Largest deviation of the logarithm of step times."""

DIFFERS = 1.5
"""Factor between two limits that is more than two such deviations."""

PAUSE_SECONDS = 3600.0
"""Shortest time between two changes."""

CLOCK_SECONDS = 600
"""Changes are dated to the end of such a period: a refused write stays the same, and is tried ever more rarely."""


def follow(state: ServiceState, load: Load, selection: Selection, sizes: Sizes) -> QueueLimitTarget | None:
    """Return another queue limit for the accelerator in use; None where the deployed one stays."""
    limit = next((p.queue_limit for p in state.service.placements if p.accelerator == selection.name), None)
    belief, correction = selection.belief, selection.belief.correction
    sure = correction.looks > 0 and correction.steps.deviation <= SURE
    if limit is None or not sure or belief.fast_loop or not _may_roll_out(state, load, selection, limit, sizes):
        return None
    tokens = queue_limit_tokens(limited_to(state.spec, belief.started), belief.engine, correction.slowness)
    if tokens is None or (limit.tokens and max(tokens, limit.tokens) <= DIFFERS * min(tokens, limit.tokens)):
        return None
    before = "any number of" if limit.tokens is None else f"at most {limit.tokens:,}"
    message = (
        f"{selection.name} engines queue {before} prompt tokens; {tokens:,} are right by the objectives, their KV "
        f"cache and their steps ({correction.slowness:.2g} times as long as expected); replicas restart in turn"
    )
    changed_at = math.ceil(state.now / CLOCK_SECONDS) * CLOCK_SECONDS
    return QueueLimitTarget(selection.name, QueueLimit(tokens, changed_at), message)


def _may_roll_out(state: ServiceState, load: Load, selection: Selection, limit: QueueLimit, sizes: Sizes) -> bool:
    """Return whether a rollout may begin: none runs, none ran within the hour, and it takes no capacity that is needed.

    With a free GPU the new replica serves before an old one ends, which helps even if capacity is short. Sizes are not
    lowered during a rollout, so replicas that are too many go first.
    """
    if state.held_by_people or selection.switching or not selection.group.ready or sizes.wanted < sizes.before:
        return False
    if any(p.rolling_out or p.paused or p.batching_before is not None for p in state.service.placements):
        return False
    if limit.changed_at is not None and abs(state.now - limit.changed_at) < PAUSE_SECONDS:
        return False
    if state.spec.may_surge and selection.chosen.room.free_replicas > sizes.after - sizes.before:
        return True
    carried_rps = (len(selection.group.ready) - 1) * selection.belief.rate_rps
    return load.demand_rps is not None and load.demand_rps <= carried_rps
