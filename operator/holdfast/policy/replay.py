"""Replay the decision about one service without the services that it competed with."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.domain.engine import StepSums
from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceSpec
from holdfast.domain.snapshot import Snapshot
from holdfast.enginemodel.mix import LengthMix
from holdfast.policy.decide import DEFAULTS, STEP_LAW, Made, decide_service, known_of
from holdfast.policy.estimate.engine_model import EngineModel, ReplicaRate
from holdfast.policy.memory import FleetContext, ServiceMemory
from holdfast.policy.placement.node_inventory import Inventory
from holdfast.policy.settings import PolicySettings


def decide_alone(
    snapshot: Snapshot,
    memory: ServiceMemory,
    context: FleetContext,
    settings: PolicySettings = DEFAULTS,
    model: EngineModel = STEP_LAW,
) -> Made:
    """Decide about the only service of a snapshot as a tick did that gave it this context.

    Raises:
        ValueError: The snapshot has no service, or several.
    """
    (service,) = snapshot.services
    inventory = Inventory(tuple(sorted(snapshot.nodes, key=lambda node: node.name)))
    replayed, known = ReplayedModel(model, context.unanswered), known_of(memory, service)
    return decide_service(service, known, context.allocation, context.promise, snapshot, inventory, settings, replayed)


class ReplayedModel:
    """An engine model that leaves the same questions unanswered as a tick did."""

    def __init__(self, model: EngineModel, unanswered: Iterable[int]) -> None:
        self._model = model
        self._unanswered = frozenset(unanswered)
        self._asked = 0

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate | None:
        """Return what the replica carries."""
        return self._model.rate(spec, option, mix, slowness) if self._is_answered() else None

    def tpot_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, rate_rps: float
    ) -> float | None:
        """Return the mean time per output token."""
        return self._model.tpot_seconds(spec, option, mix, slowness, rate_rps) if self._is_answered() else None

    def steps_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, rate_rps: float, steps: StepSums
    ) -> float | None:
        """Return how long these steps would take."""
        return self._model.steps_seconds(spec, option, mix, rate_rps, steps) if self._is_answered() else None

    def best_limits(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float
    ) -> BatchingLimits | None:
        """Return the best limits."""
        return self._model.best_limits(spec, option, mix, slowness) if self._is_answered() else None

    def _is_answered(self) -> bool:
        self._asked += 1
        return self._asked - 1 not in self._unanswered
