"""Whether more replicas help: two larger sizes without a better share are enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.policy.estimate.evidence_window import EvidenceWindow
from holdfast.policy.estimate.growth import Growth, watch_growth
from holdfast.policy.estimate.slo_budget import Verdicts
from tests.builders import NOW

CARRIED = 10.0


def window(size: int, share: float, rate: float = 20.0, requests: float = 1000.0) -> EvidenceWindow:
    """A minute in which so many replicas served this share of the requests well."""
    verdicts = Verdicts(requests * share, requests * (1.0 - share))
    return EvidenceWindow(NOW - 60.0, arrivals=60.0 * rate, replica_seconds=60.0 * size, verdicts=verdicts)


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


def test_a_few_requests_show_nothing() -> None:
    few = window(4, 0.0, requests=10.0)
    assert watch_growth(Growth(), "h100", 4, few, CARRIED, True) == Growth()
    assert watch_growth(replace(Growth(), size=3), "h100", 4, few, CARRIED, True) == replace(Growth(), size=3)
