"""A class has at most its share of the tokens of a minute; what is beyond has the service's own class."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_engine.objectives.rules import Limits
from holdfast_engine.queue.tokenshare import SPAN_SECONDS, TokenShares
from tests.holdfast_engine.test_engine_classes import KEY, OWN, TIGHT, engine_of
from tests.holdfast_engine.test_engine_fastloop import LAW

HALF = replace(TIGHT, max_share=0.5)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 500), st.floats(0.0, 90.0)), max_size=80), st.floats(0.0, 1.0))
def test_a_class_has_no_more_than_its_share_and_one_request(asked: list[tuple[bool, int, float]], most: float) -> None:
    shares, given_class, now = TokenShares(), replace(TIGHT, max_share=most), 0.0
    had: list[tuple[int, bool, int]] = []
    for wants, tokens, passed in asked:
        now += passed
        has_room = wants and shares.has_room(given_class, now)
        shares.add("tight" if has_room else "", tokens, now)
        had.append((int(now), has_room, tokens))
        recent = [(is_tight, number) for at, is_tight, number in had if at > int(now) - SPAN_SECONDS]
        own = sum(number for is_tight, number in recent if is_tight)
        if has_room:
            assert own - tokens <= most * (sum(number for _, number in recent) - tokens) + 1e-6
    assert len(shares._seconds) <= SPAN_SECONDS + 1


def test_a_minute_later_nothing_is_held_against_a_class() -> None:
    shares = TokenShares()
    assert shares.has_room(HALF, 0.0)
    shares.add("tight", 100, 0.0)
    assert not shares.has_room(HALF, 59.0)
    assert shares.has_room(HALF, 60.0)
    assert (len(shares._seconds), dict(shares._sums), shares._total) == (0, {}, 0)


def test_a_class_without_a_bound_always_has_room() -> None:
    shares = TokenShares()
    shares.add("tight", 100, 0.0)
    assert shares.has_room(TIGHT, 0.0)


@pytest.mark.parametrize(("most", "found"), [(None, 40), (1.0, 40), (0.5, 20), (0.0, 1)])
def test_requests_beyond_the_share_are_judged_and_counted_as_the_services_own(most: float | None, found: int) -> None:
    engine = engine_of(Limits(1, OWN, prior=LAW, classes=(replace(TIGHT, max_share=most),)))
    for _ in range(40):
        engine.arrive(prompt=100, output=10, claims={KEY: "tight"})
    engine.run(5.0)
    ledger = engine.loop.ledger
    assert ledger.classes["tight"].arrived == pytest.approx(found, abs=1)
    assert ledger.own.arrived + ledger.classes["tight"].arrived == 40
    assert ledger.own.unjudged == ledger.classes["tight"].unjudged == 0


def test_tokens_of_answers_count_too() -> None:
    engine = engine_of(Limits(1, OWN, prior=LAW, classes=(HALF,)))
    engine.arrive(prompt=100, output=300, claims={KEY: "tight"})
    engine.run(30.0)
    engine.arrive(prompt=200, output=1)
    engine.arrive(prompt=100, output=1, claims={KEY: "tight"})
    assert engine.loop.ledger.classes["tight"].arrived == 1
    engine.arrive(prompt=300, output=1)
    engine.arrive(prompt=100, output=1, claims={KEY: "tight"})
    assert engine.loop.ledger.classes["tight"].arrived == 2
