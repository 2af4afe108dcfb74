"""What other sizes than the one decided would carry, by the same model and at the same forecast."""

from __future__ import annotations

from typing import Any

from holdfast.domain.decision import Decision
from holdfast.domain.service import ServiceSpec


def what_if(spec: ServiceSpec, decision: Decision) -> list[dict[str, Any]]:
    """Return the sizes around the one decided, smallest first; empty where no capacity or forecast is known.

    Replicas are added and taken on the accelerator in use. `load_share`: forecast over what they carry.
    """
    capacity, forecast = decision.capacity, decision.explanation.forecast_rps
    if capacity is None or forecast is None or capacity.per_replica_rps <= 0.0:
        return []
    decided, wanted = decision.verdict.replicas, decision.explanation.wanted_replicas
    rates = rates_by_accelerator(decision)
    carried = sum(target.replicas * rates.get(target.accelerator, 0.0) for target in decision.verdict.targets)
    sizes = {decided - 1, decided, decided + 1} | ({wanted} if wanted is not None else set())
    return [
        {
            "replicas": size,
            "decided": size == decided,
            "wanted": size == wanted,
            "carries_rps": (carries := max(0.0, carried + (size - decided) * capacity.per_replica_rps)),
            "load_share": forecast / carries if carries > 0.0 else None,
            "dollars_per_hour": _cost(spec, decision, capacity.accelerator, size - decided),
        }
        for size in sorted(sizes)
        if size >= 0
    ]


def rates_by_accelerator(decision: Decision) -> dict[str, float]:
    """Return the requests per second that one replica carries, by accelerator."""
    rates = {each.accelerator: each.per_replica_rps for each in decision.explanation.candidates}
    if decision.capacity is not None:
        rates[decision.capacity.accelerator] = decision.capacity.per_replica_rps
    return rates


def _cost(spec: ServiceSpec, decision: Decision, accelerator: str, more: int) -> float | None:
    counts = {target.accelerator: target.replicas for target in decision.verdict.targets}
    counts[accelerator] = max(0, counts.get(accelerator, 0) + more)
    prices = {option.name: option.cost_per_replica_hour for option in spec.accelerators}
    costs = [None if (price := prices.get(name)) is None else price * count for name, count in counts.items() if count]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None
