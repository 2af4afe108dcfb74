"""A run of the twin as its losses are judged: who served when, and how much work each request was."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.autoscaling.fixed_limits import carried_rps
from benchmarks.autoscaling.scarcity import Played, Span, Steps
from holdfast.twin.arrays import state_arrays
from holdfast.twin.arrays.timers import Floats
from holdfast.twin.pods.cluster import SimulatedPod
from holdfast.twin.replica.capacity import DRAWS
from holdfast.twin.runs.oracle import work_seconds
from holdfast.twin.runs.results import good
from holdfast.twin.runs.run import Finished
from holdfast.twin.scenarios.declared_service import Declared, engine_kind
from holdfast.twin.scenarios.scenario import Fault, Scenario

SPEED = {"replica-hang": lambda fault: 0.0, "replica-slow": lambda fault: 1.0 / fault.factor}
"""What is left of a replica."""

BLIND = "metrics-gone"
TICKS = 2


def played(run: Finished, each: Declared, tick_seconds: float) -> Played:
    """The only service of a run, on its only accelerator, under a policy that looks every `tick_seconds`."""
    (service,) = run.services
    scenario, spec, requests = run.scenario, service.spec, service.fleet.requests
    entry = scenario.cluster.accelerators[spec.accelerators[0].name]
    return Played(
        at=requests["at"],
        work=replica_seconds(scenario, each),
        good=good(service),
        answered_at=np.where(np.isnan(requests["first_at"]), np.inf, requests["first_at"]),
        queued=~np.isin(requests["state"], (state_arrays.REJECTED, state_arrays.UNSERVED, state_arrays.LOST)),
        serving=serving(service.everything, scenario.faults),
        most_replicas=spec.max_replicas,
        objective=spec.slo.objective,
        patience_seconds=spec.slo.ttft_seconds + spec.slo.tpot_seconds * float(requests["output"].mean()),
        reaction_seconds=entry.cold_start * (1.0 + entry.cold_start_jitter) + TICKS * tick_seconds,
        warmup_seconds=scenario.warmup,
        ends=scenario.duration,
        losses=[fault.at for fault in scenario.faults if fault.kind != BLIND],
        blind=[Span(*_lasts(fault, scenario.duration)) for fault in scenario.faults if fault.kind == BLIND],
    )


def replica_seconds(scenario: Scenario, each: Declared) -> Floats:
    """Work of each request: seconds of one stock engine at its capacity, which the bench finds."""
    option = each.spec.accelerators[0]
    kind = engine_kind(each, option, scenario.cluster.accelerators[option.name], admission=False)
    seconds = work_seconds(each.workload, kind)
    return np.asarray(seconds / seconds.mean() / carried_rps(scenario, each, None, DRAWS))


def serving(pods: Sequence[SimulatedPod], faults: Sequence[Fault]) -> Steps:
    """Replicas that are ready and do not leave, but for what a hung or a slow one does not do."""
    served = sorted((pod for pod in pods if pod.engine is not None), key=lambda pod: pod.number)
    turns = sorted(_turns(faults))
    changes = {moment for pod in served for moment in (pod.ready_at, pod.leaving_at) if moment is not None}
    since = sorted({0.0, *changes, *(moment for moment, _, _ in turns)})
    speed: dict[int, float] = {}
    worth = []
    for moment in since:
        alive = [pod for pod in served if _begun(pod, moment) and (pod.gone_at is None or pod.gone_at > moment)]
        for _, replica, left in (turn for turn in turns if turn[0] == moment and alive):
            speed[alive[replica % len(alive)].number] = left
        stay = (pod for pod in alive if pod.leaving_at is None or pod.leaving_at > moment)
        worth.append(sum(speed.get(pod.number, 1.0) for pod in stay))
    return Steps(np.array(since), np.array(worth, np.float64))


def _begun(pod: SimulatedPod, moment: float) -> bool:
    return pod.ready_at is not None and pod.ready_at <= moment


def _turns(faults: Sequence[Fault]) -> list[tuple[float, int, float]]:
    """When which replica is left how much of its speed: the one with that number among those that are there."""
    found = []
    for fault in faults:
        if fault.kind in SPEED:
            begins, ends = _lasts(fault, np.inf)
            found += [(begins, fault.replica, SPEED[fault.kind](fault)), (ends, fault.replica, 1.0)]
    return [turn for turn in found if turn[0] < np.inf]


def _lasts(fault: Fault, until: float) -> tuple[float, float]:
    return fault.at, until if fault.lasts is None else fault.at + fault.lasts
