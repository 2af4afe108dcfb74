"""Versions rise with the content, survive every change of leader, and stay while nothing changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.control.limits.limits_version import LARGEST_LEAD, numbered
from holdfast_engine.objectives.rules import Limits, Objectives

NOW = 1_000.0
WANTED = Limits(1, Objectives(1.0, 0.05))
OTHER = Limits(1, Objectives(2.0, 0.05))


def at(version: int, content: Limits = WANTED) -> Limits:
    return replace(content, version=version)


def test_the_first_version_is_the_clock_in_seconds() -> None:
    assert numbered(WANTED, [], [], NOW) == at(1000)


def test_what_is_known_under_the_highest_version_keeps_it() -> None:
    assert numbered(WANTED, [at(1200), at(1100, OTHER), at(1200)], [1200, 1100], NOW).version == 1200
    assert numbered(at(77), [at(5)], [], NOW) == at(5), "the version of the wanted limits themselves means nothing"


def test_another_content_gets_a_version_above_all_others() -> None:
    assert numbered(WANTED, [at(1200, OTHER)], [1300], NOW).version == 1301
    assert numbered(WANTED, [at(5, OTHER)], [], NOW).version == 1000


def test_a_content_that_comes_back_gets_a_new_version() -> None:
    assert numbered(WANTED, [at(1100), at(1200, OTHER)], [], NOW).version == 1201


def test_a_version_that_stands_for_two_contents_is_given_up() -> None:
    assert numbered(WANTED, [at(1200), at(1200, OTHER)], [], NOW).version == 1201


def test_an_engine_that_reports_a_version_nobody_knows_is_overtaken() -> None:
    assert numbered(WANTED, [at(1200)], [1250], NOW).version == 1251


def test_an_absurd_version_leaves_room_for_the_others() -> None:
    huge = at(1000 + LARGEST_LEAD + 1, OTHER)
    assert numbered(WANTED, [at(1200), huge], [huge.version], NOW).version == 1200


@pytest.mark.parametrize("written", [2**52, 2**52 - 1, 2**40, 1000 + LARGEST_LEAD, 5000])
def test_one_engine_that_somebody_wrote_a_number_to_leaves_the_others_able_to_follow(written: int) -> None:
    """However often limits change then: the highest number that an engine at work knows always rises."""
    in_force, known, edited = 1200, [at(1200)], at(written, OTHER)
    for seconds in range(1, 40, 5):
        wanted = Limits(1, Objectives(1.0 + seconds, 0.05))
        chosen = numbered(wanted, [*known, edited], [in_force, written], NOW + seconds)
        assert chosen.version > in_force
        assert numbered(wanted, [*known, edited, chosen], [chosen.version, written], NOW + seconds + 1) == chosen
        in_force, known = chosen.version, [*known, chosen]


@given(
    known=st.lists(st.tuples(st.integers(1, 2**53 - 1), st.sampled_from([1.0, 2.0, 3.0])), max_size=6),
    reported=st.lists(st.integers(1, 2**53 - 1), max_size=4),
    ttft=st.sampled_from([1.0, 2.0, 3.0]),
    now=st.floats(-1e18, 1e18),
)
def test_nobody_who_has_the_version_has_another_content(
    known: list[tuple[int, float]], reported: list[int], ttft: float, now: float
) -> None:
    stands = [Limits(version, Objectives(seconds, 0.05)) for version, seconds in known]
    wanted = Limits(1, Objectives(ttft, 0.05))
    chosen = numbered(wanted, stands, reported, now)
    assert replace(chosen, version=1) == wanted
    assert 0 < chosen.version < 2**53
    most = int(min(max(now, 0.0), 2**52)) + LARGEST_LEAD
    usable = [limits for limits in stands if limits.version <= most]
    assert all(limits.version <= chosen.version for limits in usable)
    assert all(limits == chosen for limits in usable if limits.version == chosen.version)
    assert all(version <= chosen.version for version in reported if version <= most)
    later = max(now, 0.0) + 5.0
    assert numbered(wanted, [*stands, chosen], [*reported, chosen.version], later) == chosen, "it rests"
