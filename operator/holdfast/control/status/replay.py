"""A recorded decision, made again: by the command that explains one, never by the operator."""

from __future__ import annotations

from holdfast.control.status.decision_record import DecisionRecord
from holdfast.domain.decision import Decision
from holdfast.enginemodel.replica_model import EngineModel
from holdfast.policy.decide import STEP_LAW, decide_alone


def decided_again(record: DecisionRecord, model: EngineModel = STEP_LAW) -> Decision | None:
    """Replay the record with this code, under the allocation of that moment.

    None if this code would not decide yet.
    """
    decision, _ = decide_alone(record.snapshot, record.memory, record.context, record.settings, model)
    return decision
