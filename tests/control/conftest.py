"""For all tests of acting: how long it may take is tried on a virtual clock alone."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_hurry(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the machine's clock a crowded moment would leave services to a next tick that no test has."""
    if request.node.get_closest_marker("looptime") is None:
        for seconds in (
            "writes.actuator._ACT_SECONDS",
            "writes.actuator._HOLD_SECONDS",
            "benchmarks.benchmarks._ACT_SECONDS",
        ):
            monkeypatch.setattr(f"holdfast.control.{seconds}", 600.0)
