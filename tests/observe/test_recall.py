"""What status tells of the time before a restart: numbers that can be true, of the spec that they were learned of."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from holdfast.domain.snapshot import Recalled
from holdfast.observe.objects.recall import recalled

STATUS: dict[str, Any] = {
    "observedGeneration": 4,
    "coldStartSeconds": 42.5,
    "slo": {"quantile": 0.9995},
    "capacity": {"accelerator": "h100", "learnedGain": 1.2, "learnedSlowness": 0.9},
}
WHOLE = Recalled(42.5, 0.9995, "h100", 1.2, 0.9)


def test_what_was_learned_is_read_back() -> None:
    assert recalled(STATUS, 4) == WHOLE
    assert recalled({}, 4) == Recalled()


@pytest.mark.parametrize("generation", [3, 5])
def test_what_was_learned_of_another_spec_is_not(generation: int) -> None:
    assert recalled(STATUS, generation) == Recalled(42.5, 0.9995)


@pytest.mark.parametrize("nonsense", [None, "long", True, 0, -1.0, math.nan, math.inf, 1e9, [], {}])
def test_what_cannot_be_true_is_left_out_and_nothing_else_is(nonsense: Any) -> None:
    capacity = STATUS["capacity"]
    for name in ("learnedGain", "learnedSlowness"):
        assert recalled({**STATUS, "capacity": {**capacity, name: nonsense}}, 4) == Recalled(42.5, 0.9995)
    assert recalled({**STATUS, "slo": {"quantile": nonsense}}, 4) == Recalled(42.5, None, "h100", 1.2, 0.9)
    assert recalled({**STATUS, "coldStartSeconds": nonsense}, 4) == Recalled(None, 0.9995, "h100", 1.2, 0.9)


def test_a_fight_over_the_size_is_read_back() -> None:
    told = {"type": "ScalingActive", "status": "False", "reason": "OtherAutoscaler"}
    assert recalled({**STATUS, "conditions": [{"type": "Ready"}, told]}, 4) == dataclasses.replace(WHOLE, set_back=True)
    assert recalled({"conditions": [told]}, 4).set_back
    assert not recalled({**STATUS, "conditions": [{**told, "reason": "Recommend"}]}, 4).set_back


@pytest.mark.parametrize("nonsense", [None, 3, "OtherAutoscaler", {"type": "ScalingActive"}, [None, 3]])
def test_conditions_of_another_shape_tell_of_no_fight(nonsense: Any) -> None:
    assert recalled({**STATUS, "conditions": nonsense}, 4) == WHOLE


@pytest.mark.parametrize("nonsense", [None, 3, ["h100"]])
def test_parts_of_another_shape_tell_nothing(nonsense: Any) -> None:
    assert recalled({**STATUS, "capacity": nonsense}, 4) == Recalled(42.5, 0.9995)
    assert recalled({**STATUS, "slo": nonsense}, 4).quantile is None
    assert recalled({**STATUS, "capacity": {**STATUS["capacity"], "accelerator": nonsense}}, 4).accelerator == ""
