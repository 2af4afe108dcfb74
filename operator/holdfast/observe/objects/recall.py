"""Status -> learned values from before a restart, if they are plausible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.api.conditions import ConditionType
from holdfast.api.reasons import Reason
from holdfast.domain.snapshot import Recalled

MOST_COLD_START_SECONDS = 86_400.0
_SET_BACK = (ConditionType.SCALING_ACTIVE, Reason.OTHER_AUTOSCALER)
MOST_TIMES = 1e5
"""A value that differs from the engine model by more than this factor is no value that was learned."""


def recalled(status: Mapping[str, Any], generation: int) -> Recalled:
    """Read a status back; learned values are valid only for their generation of the spec."""
    capacity, slo = _part(status, "capacity"), _part(status, "slo")
    accelerator = capacity.get("accelerator")
    known = Recalled(
        cold_start_seconds=_number(status.get("coldStartSeconds"), 0.0, MOST_COLD_START_SECONDS),
        quantile=_number(slo.get("quantile"), 0.0, 1.0),
        set_back=_was_set_back(status),
    )
    gain, slowness = (
        _number(capacity.get(name), 1.0 / MOST_TIMES, MOST_TIMES) for name in ("learnedGain", "learnedSlowness")
    )
    same = status.get("observedGeneration") == generation and isinstance(accelerator, str)
    if not same or gain is None or slowness is None:
        return known
    return replace(known, accelerator=str(accelerator), gain=gain, slowness=slowness)


def _was_set_back(status: Mapping[str, Any]) -> bool:
    """Whether somebody else sized the service; conditions of a status may be anything."""
    found = status.get("conditions")
    shown = [each for each in found if isinstance(each, Mapping)] if isinstance(found, Sequence) else []
    return any((each.get("type"), each.get("reason")) == _SET_BACK for each in shown)


def _part(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = status.get(name)
    return part if isinstance(part, Mapping) else {}


def _number(found: object, above: float, most: float) -> float | None:
    """The number; None if there is none or it is implausible."""
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return float(found) if above < found <= most else None
