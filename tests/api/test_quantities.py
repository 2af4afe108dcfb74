"""Durations, percentages, and numbers and names in messages."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.quantities import (
    counted,
    format_duration,
    format_rate,
    parse_duration_seconds,
    parse_percent,
    some_of,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("0.5ms", 0.0005), ("1.5s", 1.5), ("2m", 120), ("1h", 3600), ("1.5d", 129600), ("0s", 0)],
)
def test_every_unit(text: str, seconds: float) -> None:
    assert parse_duration_seconds(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "ms",
        "-1s",
        "+1s",
        ".5s",
        "1.s",
        "1e3s",
        "1 s",
        " 1s",
        "1s\n",
        "1S",
        "1us",
        "1m30s",
        "١s",
        "nan",
        "infs",
    ],
)
def test_what_is_no_duration_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ValueError, match="write a number and a unit"):
        parse_duration_seconds(text)


@given(st.integers(0, 10**9), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_a_duration_survives_being_written_and_read(number: int, unit: str) -> None:
    seconds = parse_duration_seconds(f"{number}{unit}")
    assert parse_duration_seconds(format_duration(seconds)) == pytest.approx(seconds, rel=1e-12)


@given(st.floats(1e-9, 1e9))
def test_every_positive_number_of_seconds_is_written_in_the_grammar(seconds: float) -> None:
    assert parse_duration_seconds(format_duration(seconds)) == pytest.approx(seconds, rel=1e-2, abs=1e-12)


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_duration_seconds, parse_percent):
        try:
            value = parse(text)
        except ValueError:
            continue
        assert math.isfinite(value)
        assert value >= 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "500ms"), (0.0005, "0.5ms"), (0, "0s"), (1, "1s"), (90, "90s"), (60, "1m"), (5400, "90m"), (86400, "1d")],
)
def test_the_largest_unit_that_stays_whole_is_used(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, -math.inf])
def test_what_no_duration_can_say_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        format_duration(seconds)


@pytest.mark.parametrize(("text", "share"), [("99%", 0.99), ("99.5%", 0.995), ("50%", 0.5), ("0%", 0)])
def test_a_percentage_is_a_share(text: str, share: float) -> None:
    assert parse_percent(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "99", "%", "-1%", "1,5%", "99 %", "99%\n"])
def test_what_is_no_percentage_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ValueError, match="percent sign"):
        parse_percent(text)


@pytest.mark.parametrize(
    ("rps", "text"),
    [
        (0.0, "0"),
        (0.0004, "0"),
        (0.004, "0.004"),
        (0.14, "0.14"),
        (0.949, "0.95"),
        (1.0, "1.0"),
        (41.27, "41.3"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_a_rate_is_never_rounded_to_nothing(rps: float, text: str) -> None:
    assert format_rate(rps) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 replicas"), (1, "1 replica"), (2, "2 replicas")])
def test_a_noun_follows_its_number(number: int, text: str) -> None:
    assert counted(number, "replica") == text


@pytest.mark.parametrize(
    ("names", "text"),
    [("", ""), ("a", "a"), ("abc", "a, b, c"), ("abcd", "a, b, c and 1 more"), ("abcde", "a, b, c and 2 more")],
)
def test_a_sentence_lists_three_names_and_counts_the_others(names: str, text: str) -> None:
    assert some_of(tuple(names)) == text


@pytest.mark.parametrize(
    ("number", "of", "text"),
    [
        (0, None, "0 replicas wait"),
        (1, None, "1 replica waits"),
        (2, None, "2 replicas wait"),
        (0, 1, "0 of 1 replica waits"),
        (1, 1, "1 of 1 replica waits"),
        (1, 3, "1 of 3 replicas waits"),
        (0, 3, "0 of 3 replicas wait"),
        (3, 3, "3 of 3 replicas wait"),
    ],
)
def test_one_is_singular_in_noun_and_verb(number: int, of: int | None, text: str) -> None:
    assert counted(number, "replica", "waits", "wait", of=of) == text


def test_a_count_needs_no_verb() -> None:
    assert (counted(1, "replica"), counted(2, "replica"), counted(1, "GPU", of=2)) == (
        "1 replica", "2 replicas", "1 of 2 GPUs",
    )  # fmt: skip
