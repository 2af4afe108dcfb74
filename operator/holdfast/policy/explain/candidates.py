"""Why each accelerator was not taken, for `holdfast explain`."""

from __future__ import annotations

from holdfast.api.quantities import counted
from holdfast.domain.decision import Candidate
from holdfast.policy.placement.choice import is_cheaper
from holdfast.policy.placement.options import Option


def candidates(considered: tuple[Option, ...], chosen: str, objective: float) -> tuple[Candidate, ...]:
    """Say of every accelerator why it was not taken, for `holdfast explain`."""
    taken = next(option for option in considered if option.name == chosen)
    return tuple(
        Candidate(
            accelerator=option.name,
            replicas=option.replicas,
            per_replica_rps=option.belief.rate_rps,
            cost_per_hour=option.cost_per_hour,
            lost_because=_lost_because(option, taken, objective),
        )
        for option in considered
    )


def _lost_because(option: Option, taken: Option, objective: float) -> str:
    if option is taken:
        return ""
    if taken.pair is not None and option.name == taken.pair.accelerator:
        return f"runs the on-demand replicas next to {taken.name}"
    return _hindered(option, objective) or _not_preferred(option, taken)


def _hindered(option: Option, objective: float) -> str:
    """What stands against it, in the order of `Option.hindrance`."""
    if option.barred:
        return "scaling.minOnDemand needs an on-demand accelerator with the same resource and count; list one"
    if option.allowed < 1:
        return "its max or budget.maxCostPerHour allows no replica; raise the limit"
    if option.backoff is not None:
        return f"unavailable ({option.backoff.reason}: {option.backoff.detail}), retried later"
    if not option.belief.feasible:
        bound = option.belief.rate.bound_by
        return f"cannot meet the objectives for {objective:.2%} of requests even without load (bound by {bound})"
    if option.allowed < option.least:
        least = f"{option.allowed} of the {counted(option.least, 'replica')} that must run"
        return f"its max or budget.maxCostPerHour allows only {least}; raise the limit"
    return "" if option.fits else f"only {counted(option.most, 'replica', of=option.replicas)} can be placed"


def _not_preferred(option: Option, taken: Option) -> str:
    if option.cost_per_hour is None or taken.cost_per_hour is None:
        return "listed later in spec.accelerators; or preferred too recently; or no room to run both during a migration"
    costs = f"${option.cost_per_hour:.2f}/h for the same load, {taken.name} ${taken.cost_per_hour:.2f}/h"
    if not is_cheaper(option, taken):
        return f"{costs}: less than 10 % cheaper, so no migration"
    return f"{costs}: cheaper too recently, or no room to run both during a migration"
