"""The table of a simulation: what is missing is no zero."""

from __future__ import annotations

import pytest

from holdfast.tools.reports import table

SERVICE = {
    "priority": 0,
    "objective": 0.99,
    "attainment": 0.0,
    "goodput_rps": 0.0,
    "gpu_hours": 1.0,
    "cost_dollars": None,
    "ttft_p99_seconds": None,
    "tpot_p99_seconds": None,
    "scale_actions": 0,
}


def test_of_a_service_that_answered_nobody_no_latencies_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    answered = SERVICE | {"ttft_p99_seconds": 0.5, "tpot_p99_seconds": 0.02}
    for services in ({"chat": SERVICE}, {"chat": SERVICE, "code": answered}):
        table.write("a run", [{"policy": "holdfast", "seed": 1, "services": services, **SERVICE}])
        shown = capsys.readouterr().out
        assert "0.00 s" not in shown
        assert " 0 ms" not in shown
        assert ("0.50 s" in shown) == ("code" in services)
