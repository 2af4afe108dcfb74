"""When an engine over two nodes is right, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from e2e.campaign.groups import CASES, PROMPTS, Case, Loss, Outcome

COUNTED = {"arrived": 20.0, "good": 20.0, "bad": 0.0}
RIGHT = Outcome(Case("TP=2", False), PROMPTS, COUNTED, Loss(20.0, 500, "liveness", 21.0, 23.5, 0))


def test_same_answers_exact_counts_and_a_loss_that_shows_are_right() -> None:
    assert RIGHT.is_right


@pytest.mark.parametrize(
    "wrong",
    [
        replace(RIGHT, same=PROMPTS - 1),
        replace(RIGHT, counted={**COUNTED, "arrived": 21.0}),
        replace(RIGHT, counted={**COUNTED, "good": 19.0, "bad": 1.0}),
        replace(RIGHT, counted={}),
        replace(RIGHT, loss=replace(RIGHT.loss, failed_probe=None)),
    ],
)
def test_one_other_token_one_other_count_or_a_leader_that_stays_ready_is_wrong(wrong: Outcome) -> None:
    assert not wrong.is_right


def test_what_did_not_happen_is_said() -> None:
    silent = replace(RIGHT, loss=Loss(20.0, None, None, None, None, None))
    assert "the request gets no answer, the first probe to fail is None never, the process ends by itself never" in str(
        silent
    )
    assert "ready for 20.0 s of silence" in str(RIGHT)


def test_each_division_loses_its_follower_at_work_and_at_rest() -> None:
    assert [(case.division, case.is_busy) for case in CASES] == [
        ("TP=2", False),
        ("TP=2", True),
        ("PP=2", False),
        ("PP=2", True),
    ]
