"""What a run was worth: attainment, goodput, latencies, GPU-hours and cost, by the control law, section 1."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.domain.service import Slo
from holdfast.twin.arrays import state_arrays
from holdfast.twin.arrays.fleet import EngineFleet, Workload
from holdfast.twin.arrays.timers import Floats
from holdfast.twin.pods.cluster import Service
from holdfast.twin.runs.run import Finished

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds per request, infinite where there was no answer."""

    ttft: Floats
    tpot: Floats
    e2e: Floats


def latencies(fleet: EngineFleet) -> Latencies:
    """What clients measured. An answer that was not finished has no TPOT and no end."""
    requests = fleet.requests
    ended = requests["state"] == state_arrays.FINISHED
    first = np.where(np.isnan(requests["first_at"]), np.inf, requests["first_at"] - requests["at"])
    gaps = requests["output"] - 1
    decoding = requests["last_at"] - requests["first_at"]
    tpot = np.where(ended, np.where(gaps > 0, decoding / np.maximum(gaps, 1), 0.0), np.inf)
    return Latencies(first, tpot, np.where(ended, requests["last_at"] - requests["at"], np.inf))


def good(service: Service) -> NDArray[np.bool_]:
    """Which requests met every objective, of their class where they have one; batch that is done met all it has."""
    found, of_class = latencies(service.fleet), service.fleet.of_class
    if of_class is None:
        return _within(service.spec.slo, found)
    met = np.isfinite(found.e2e)
    for number, slo in enumerate(_by_number(service)):
        if slo is not None:
            met &= (of_class != number) | _within(slo, found)
    return met


def _within(slo: Slo, found: Latencies) -> NDArray[np.bool_]:
    met = (found.ttft <= slo.ttft_seconds) & (found.tpot <= slo.tpot_seconds)
    return met & (found.e2e <= (math.inf if slo.e2e_seconds is None else slo.e2e_seconds)) & np.isfinite(found.e2e)


def _by_number(service: Service) -> list[Slo | None]:
    """The service's own objectives and those of each class by its number; None for batch."""
    slo = service.spec.slo
    found = {each.name: each for each in slo.classes}
    return [slo, *(found.get(name) for name in service.class_names)]


def budget_left(service: Service, times: Floats) -> Floats:
    """Share of the error budget that is left at those seconds, by arrivals within the window of the SLO before them.

    1 is untouched, 0 spent, below that overdrawn; NaN where nothing arrived.
    """
    slo, judged = service.spec.slo, _judged(service)
    at = service.fleet.requests["at"][judged]
    missed = np.concatenate([[0], np.cumsum(~good(service)[judged])])
    first, last = np.searchsorted(at, times - slo.window_seconds), np.searchsorted(at, times)
    allowed = slo.budget_share * (last - first)
    spent = np.divide(missed[last] - missed[first], allowed, out=np.full(len(times), np.nan), where=allowed > 0.0)
    return np.asarray(1.0 - spent)


def counted(run: Finished, service: Service) -> NDArray[np.bool_]:
    """Requests that arrived after the warm-up, without batch."""
    return np.asarray((service.fleet.requests["at"] >= run.scenario.warmup) & _judged(service))


def _judged(service: Service) -> NDArray[np.bool_]:
    """Requests that are no batch."""
    return no_batch(service.fleet.workload, service.class_names, service.spec.slo)


def no_batch(load: Workload, names: Iterable[str], slo: Slo) -> NDArray[np.bool_]:
    """Which requests are no batch: of all classes with these names, the others have objectives in `slo`."""
    if load.of_class is None:
        return np.ones(len(load), bool)
    judged = {each.name for each in slo.classes}
    return np.array([True, *(name in judged for name in names)])[load.of_class]


def attainment(run: Finished, service: Service) -> float:
    """Good share of a service's counted requests, 1 where there are none."""
    inside = counted(run, service)
    return float(good(service)[inside].mean()) if inside.any() else 1.0


def attains(run: Finished) -> bool:
    """Whether the first service of the run attained its objective, and each of its classes its own."""
    return shortfall(run) == 0.0


def shortfall(run: Finished) -> float:
    """By how much the first service's attainment is below its objective; of its classes, the one that is most."""
    service = run.services[0]
    of_class = service.fleet.of_class
    if of_class is None:
        return max(0.0, service.spec.slo.objective - attainment(run, service))
    met, inside = good(service), counted(run, service)
    each = [(slo, met[inside & (of_class == number)]) for number, slo in enumerate(_by_number(service))]
    missed = (slo.objective - float(found.mean()) for slo, found in each if slo is not None and len(found))
    return max(0.0, max(missed, default=0.0))


def summary(run: Finished, wall_seconds: float) -> dict[str, Any]:
    """The run as `simulate --json` writes it."""
    services = {service.spec.key.name: _service(run, service) for service in run.services}
    arrivals = sum(int(counted(run, service).sum()) for service in run.services)
    in_time = sum(int((good(service) & counted(run, service)).sum()) for service in run.services)
    return {
        "policy": run.policy,
        "seed": run.seed,
        "services": services,
        "attainment": in_time / arrivals if arrivals else None,
        "gpu_hours": gpu_hours(run),
        "cost_dollars": _cost(run),
        "scale_actions": sum(service.actions for service in run.services),
        "wall_seconds": wall_seconds,
    }


def _service(run: Finished, service: Service) -> dict[str, Any]:
    inside = counted(run, service)
    found, arrivals = latencies(service.fleet), int(inside.sum())
    in_time = int((good(service) & inside).sum())
    told: dict[str, Any] = {
        "objective": service.spec.slo.objective,
        "priority": service.spec.priority,
        "arrivals": arrivals,
        "good": in_time,
        "attainment": in_time / arrivals if arrivals else None,
        "goodput_rps": in_time / (run.scenario.duration - run.scenario.warmup),
        "gpu_hours": sum(seconds for _, seconds in _gpu_seconds(service, run.scenario.duration)) / 3600.0,
        "cost_dollars": cost_dollars(service, run.scenario.duration),
        "scale_actions": service.actions,
    }
    told |= _percentiles("ttft", found.ttft[inside]) | _percentiles("tpot", found.tpot[inside])
    states = np.bincount(service.fleet.requests["state"][inside], minlength=state_arrays.LOST + 1)
    told["rejected"] = int(states[state_arrays.REJECTED])
    told["unserved"] = int(states[state_arrays.UNSERVED])
    told["lost"] = int(states[state_arrays.LOST])
    return told | _classes(run, service)


def _classes(run: Finished, service: Service) -> dict[str, Any]:
    """What became of each class with requests; "" is the service's own. Of batch, `good` is what was done."""
    of_class = service.fleet.of_class
    if of_class is None:
        return {}
    since, met, found = service.fleet.requests["at"] >= run.scenario.warmup, good(service), latencies(service.fleet)
    classes = {}
    for number, (name, slo) in enumerate(zip(("", *service.class_names), _by_number(service), strict=True)):
        inside = since & (of_class == number)
        arrivals, in_time = int(inside.sum()), int((met & inside).sum())
        if arrivals:
            classes[name] = {
                "objective": None if slo is None else slo.objective,
                "arrivals": arrivals,
                "good": in_time,
                "attainment": in_time / arrivals,
                **_percentiles("ttft", found.ttft[inside]),
                **_percentiles("tpot", found.tpot[inside]),
            }
    return {"classes": classes}


def _percentiles(name: str, values: Floats) -> dict[str, float | None]:
    answered = values[np.isfinite(values)]
    found = ((share, float(np.percentile(answered, share)) if len(answered) else None) for share in PERCENTILES)
    return {f"{name}_p{share}_seconds": value for share, value in found}


def gpu_hours(run: Finished) -> float:
    """GPU time from creation to removal of every pod that held GPUs, start-up and drain included."""
    duration = run.scenario.duration
    return sum(seconds for service in run.services for _, seconds in _gpu_seconds(service, duration)) / 3600.0


def _gpu_seconds(service: Service, until: float) -> list[tuple[str, float]]:
    return [
        (
            pod.accelerator,
            pod.gpus * max(0.0, min(until, math.inf if pod.gone_at is None else pod.gone_at) - max(0.0, pod.placed_at)),
        )
        for pod in service.everything
        if pod.placed_at is not None
    ]


def _cost(run: Finished) -> float | None:
    """Dollars, None where a service names no prices."""
    costs = [cost_dollars(service, run.scenario.duration) for service in run.services]
    return None if None in costs else sum(cost for cost in costs if cost is not None)


def cost_dollars(service: Service, until: float) -> float | None:
    """What the service's pods cost by that second, None where one has no price."""
    dollars = 0.0
    for accelerator, seconds in _gpu_seconds(service, until):
        price = service.option(accelerator).cost_per_gpu_hour
        if price is None:
            return None
        dollars += price * seconds / 3600.0
    return dollars
