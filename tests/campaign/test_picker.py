"""Which picks of an endpoint picker are wrong."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.campaign.picker import REFUSED, Phase, endpoints, wrong_picks


def pod(address: str, ready: str = "True", **metadata: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready}]
    return {"metadata": {"name": "p", **metadata}, "status": {"podIP": address, "conditions": conditions}}


def test_an_endpoint_is_a_pod_that_is_ready_and_stays() -> None:
    pods = [pod("10.0.0.1"), pod("10.0.0.2", "False"), pod("10.0.0.3", deletionTimestamp="2026-12-01T00:00:00Z")]
    assert endpoints(pods) == {"10.0.0.1:8000"}


@pytest.mark.parametrize(
    ("picked", "before", "after", "wrong"),
    [
        (["a", "b"], {"a", "b"}, {"a", "b"}, []),
        (["a", "b"], {"a", "b"}, {"a"}, []),
        (["a", "b"], {"a"}, {"a"}, ["b"]),
        ([REFUSED], {"a"}, {"a"}, [REFUSED]),
        ([REFUSED, "a"], set(), {"a"}, []),
        ([REFUSED, "a"], set(), set(), ["a"]),
        ([], {"a"}, {"a"}, []),
    ],
)
def test_a_pick_is_wrong_if_it_was_ready_at_no_time(
    picked: list[str], before: set[str], after: set[str], wrong: list[str]
) -> None:
    assert wrong_picks(picked, before, after) == wrong


def test_a_phase_says_how_often_each_endpoint_was_picked() -> None:
    assert str(Phase("one restarts", {"b": 2, "a": 1}, ("b",))) == "one restarts: 3 picks (a 1, b 2), 1 wrong ('b',)"
