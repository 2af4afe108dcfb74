"""The list of functions that the test of faults on the real vLLM leaves out names functions that exist."""

from __future__ import annotations

from e2e.engine.hooks import UNTRIED, hooks


def test_what_no_fault_is_tried_in_exists() -> None:
    assert set(UNTRIED) <= set(hooks())
