"""Drawn specs: those of a seed are always the same, and right ones are among them as well as wrong ones."""

from __future__ import annotations

from collections import Counter

from e2e.campaign.agreement import Answers, refusal
from e2e.campaign.specs import drawn, plural

NUMBERS = range(400)


def test_a_seed_and_a_number_always_give_the_same_object() -> None:
    assert [repr(drawn(7, number)) for number in NUMBERS] == [repr(drawn(7, number)) for number in NUMBERS]
    assert repr(drawn(7, 1)) != repr(drawn(8, 1))


def test_both_kinds_are_drawn_right_and_wrong() -> None:
    found = Counter((plural(body), bool(refusal(body))) for body in (drawn(1, number) for number in NUMBERS))
    assert len(found) == 4
    assert min(found.values()) >= 10


def test_wrong_objects_are_wrong_in_many_ways() -> None:
    assert len({refusal(drawn(1, number)) for number in NUMBERS}) >= 100


def test_a_disagreement_is_one_in_any_direction() -> None:
    assert Answers({}, "", "").agree
    assert Answers({}, "no", "no").agree
    assert not Answers({}, "no", "").agree
    assert not Answers({}, "", "no").agree
    assert not Answers({}, "", "", stored="no").agree
