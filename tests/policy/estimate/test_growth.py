"""Whether more replicas help: two larger sizes that serve no more and no larger share well are enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.policy.estimate.evidence_window import EvidenceWindow
from holdfast.policy.estimate.growth import Growth, watch_growth
from holdfast.policy.estimate.slo_budget import Verdicts
from tests.builders import NOW

CARRIED = 10.0


def window(
    size: int, share: float, rate: float = 20.0, requests: float = 1000.0, begun: float | None = None
) -> EvidenceWindow:
    """A minute in which so many replicas served this share of the requests well, and began as many as arrived."""
    verdicts, served = Verdicts(requests * share, requests * (1.0 - share)), rate if begun is None else begun
    return EvidenceWindow(
        NOW - 60.0, arrivals=60.0 * rate, begun=60.0 * served, replica_seconds=60.0 * size, verdicts=verdicts
    )


def after(*looks: tuple[int, float], rate: float = 20.0, known: Growth | None = None) -> Growth:
    growth = known or Growth()
    for size, share in looks:
        growth = watch_growth(growth, "h100", size, window(size, share, rate), CARRIED, share < 0.99)
    return growth


def test_two_larger_sizes_without_a_better_share_end_the_growth_at_the_cheapest() -> None:
    growth = after((4, 0.3), (6, 0.31), (6, 0.3), (9, 0.28))
    assert growth.useless
    assert growth.size == 4
    assert not after((4, 0.3), (6, 0.31)).useless


def test_a_better_share_goes_on() -> None:
    growth = after((4, 0.3), (6, 0.31), (9, 0.5))
    assert not growth.useless
    assert growth.size == 9


@pytest.mark.parametrize("share", [0.99, 1.0])
def test_once_the_objective_is_met_nothing_is_held_against_it(share: float) -> None:
    assert after((4, 0.3), (6, 0.3), (9, 0.3), (4, share)) == Growth()


def test_replicas_with_more_than_they_carry_show_nothing() -> None:
    """They need others: how late requests are on the way there does not matter."""
    assert after((1, 0.0), (1, 0.0), (2, 0.0)) == Growth()


def test_it_returns_to_a_smaller_size_that_does_as_well() -> None:
    assert after((9, 0.3), (6, 0.29)).size == 6
    assert after((9, 0.3), (6, 0.1)).size == 9


def test_another_load_another_accelerator_or_a_worse_share_are_new_evidence() -> None:
    known = after((4, 0.3), (6, 0.3), (9, 0.3))
    assert known.useless
    assert not after((4, 0.3), rate=30.0, known=known).useless
    assert not after((4, 0.1), known=known).useless
    assert not watch_growth(known, "l40s", 4, window(4, 0.3), CARRIED, True).useless
    assert after((4, 0.32), known=known).useless


def serving(*looks: tuple[int, float], share: float = 0.0, rate: float = 20.0) -> Growth:
    """After looks at sizes that served so many requests per second, none of them in time."""
    growth = Growth()
    for size, begun in looks:
        growth = watch_growth(growth, "h100", size, window(size, share, rate, begun=begun), CARRIED, True)
    return growth


def test_a_size_helps_that_serves_more_requests_even_if_all_are_late() -> None:
    """Behind a queue nothing is in time before the last replica that it needs is there."""
    growth = serving((4, 8.0), (5, 10.0), (6, 12.0), (7, 14.0))
    assert (growth.size, growth.steps) == (7, 0)


def test_twice_as_many_replicas_that_serve_hardly_more_do_not_help() -> None:
    growth = serving((4, 8.0), (8, 9.0), (16, 9.5))
    assert growth.useless
    assert growth.size == 4


def test_a_smaller_size_that_serves_less_is_not_as_good() -> None:
    assert serving((6, 12.0), (4, 8.0)).size == 6
    assert serving((6, 12.0), (4, 11.5)).size == 4


@pytest.mark.parametrize("each", [0.5, 1.0, 3.0, 7.0])
def test_no_size_below_the_need_ends_the_growth_while_each_replica_serves_as_much_as_the_others(each: float) -> None:
    sizes = [(size, min(20.0, each * size)) for size in range(3, 60) if each * (size - 1) < 20.0]
    assert not serving(*sizes).useless


def test_a_few_requests_show_nothing() -> None:
    few = window(4, 0.0, requests=10.0)
    assert watch_growth(Growth(), "h100", 4, few, CARRIED, True) == Growth()
    assert watch_growth(replace(Growth(), size=3), "h100", 4, few, CARRIED, True) == replace(Growth(), size=3)
