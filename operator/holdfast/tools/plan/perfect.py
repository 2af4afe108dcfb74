"""How many GPU-hours a recorded load takes: of a perfect system, of Holdfast, of one size, of another autoscaler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from holdfast.api.llmservice import LLMService
from holdfast.api.quantities import counted
from holdfast.domain.service import ServiceSpec
from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.policies import make_policy
from holdfast.twin.runs.oracle import ORACLE, oracle
from holdfast.twin.runs.peak import STATIC_PEAK, static_peak
from holdfast.twin.runs.results import attainment, attains, gpu_hours
from holdfast.twin.runs.run import Finished, simulate
from holdfast.twin.scenarios.inputs import BadInput
from holdfast.twin.scenarios.recorded import beginning_with, recorded

HOLDFAST, STOCK = "holdfast", "holdfast-slow"

SEED = 1
"""The requests are recorded: a seed only decides on which connections they come."""

Progress = Callable[[str, float], None]
"""Of a policy's name, and of the share of its run that is done."""


def needs(
    service: LLMService, spec: ServiceSpec, load: Workload, cold_start_seconds: float, peer: str, progress: Progress
) -> list[Finished]:
    """Runs of the oracle, of Holdfast with its plugin and without, of the best size, and of a peer.

    Each has the service's first accelerator alone. Who chooses sizes begins with that of the oracle. BadInput where
    nothing could be scaled while these requests come, or where the twin cannot play the engines.
    """
    _check_length(load, cold_start_seconds)
    scenario, declared = recorded(service, spec, load, cold_start_seconds)
    runs = [oracle(scenario, [declared], SEED, partial(progress, ORACLE))]
    begun = [beginning_with(declared, runs[0].sizes[0].ready[0])]
    for name in (HOLDFAST, STOCK, peer):
        runs.append(simulate(scenario, begun, make_policy(name, {}), SEED, partial(progress, name)))
    return [*runs[:-1], static_peak(scenario, begun, SEED, partial(progress, STATIC_PEAK)), runs[-1]]


def _check_length(load: Workload, cold_start_seconds: float) -> None:
    lasts = float(load.at[-1])
    if lasts <= cold_start_seconds:
        told = f"{counted(len(load), 'request')} within {lasts:.3g} s, and a start of a replica takes"
        raise BadInput(f"{told} {cold_start_seconds:g} s: no size could follow them; give a longer trace")


def perfect(runs: Sequence[Finished]) -> Finished | None:
    """The cheapest run that attains with sizes known before: the oracle's, or the best size's; None where none does.

    The oracle searches among schedules that follow the load, and bursts of seconds may leave it none.
    """
    attaining = [run for run in runs if run.policy.startswith((ORACLE, STATIC_PEAK)) and attains(run)]
    return min(attaining, key=gpu_hours, default=None)


def told(runs: Sequence[Finished]) -> str:
    """How many GPU-hours a perfect system takes, and how many Holdfast takes, in one sentence."""
    best, ours = perfect(runs), next(run for run in runs if run.policy == HOLDFAST)
    if best is None:
        spec = runs[0].services[0].spec
        return (
            f"No sizes up to scaling.max ({spec.max_replicas}) were found that attain {100.0 * spec.slo.objective:g} % "
            "with stock engines: raise scaling.max, or relax spec.slo"
        )
    return (
        f"A perfect system ({best.policy}) needs {gpu_hours(best):.3g} GPU-hours for {_good(best)}; Holdfast with its "
        f"plugin {gpu_hours(ours):.3g} for {_good(ours)}{factor(gpu_hours(ours), gpu_hours(best), attains(ours))}."
    )


def factor(ours_hours: float, best_hours: float, attained: bool) -> str:
    """How many times a perfect system's GPU-hours; nothing where the objective is missed: fewer are not cheaper."""
    return f", {ours_hours / best_hours:.2f} times as many" if attained else ""


def _good(run: Finished) -> str:
    (service,) = run.services
    missed = "" if attains(run) else f" (objective {100.0 * service.spec.slo.objective:g} %: missed)"
    return f"{100.0 * attainment(run, service):.2f} % good{missed}"
