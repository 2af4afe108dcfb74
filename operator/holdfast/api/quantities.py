"""Durations and percentages as people write them in an LLMService; rates, counts and lists as messages show them."""

import datetime
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

DURATION_PATTERN = r"^[0-9]+([.][0-9]+)?(ms|s|m|h|d)$"
DURATION_REMEDY = "write a number and a unit (ms, s, m, h or d), such as 500ms, 1.5s or 1h"
PERCENT_PATTERN = r"^[0-9]+([.][0-9]+)?%$"
PERCENT_REMEDY = "write a number and a percent sign, such as 99% or 99.5%"

LEAST_SHOWN_RPS = 0.001
"""A rate below this reads as none."""

MOST_NAMED = 3
"""Names that a sentence lists."""

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(|m|k|M|G|Ki|Mi|Gi)")
_UNITS = {"m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9)}
_UNITS |= {"Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30)}
_DURATION = re.compile(DURATION_PATTERN[1:-1])
_PERCENT = re.compile(PERCENT_PATTERN[1:-1])
_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration_seconds(text: str) -> float:
    """Seconds of a duration such as `500ms`, `1.5s` or `30d`; ValueError with the remedy otherwise."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration: {DURATION_REMEDY}")
    unit = match[2]
    number = float(text[: -len(unit)])
    # Divided, not multiplied by 0.001: the CRD's CEL rules compute the same floating point number.
    return number / 1000.0 if unit == "ms" else number * _UNIT_SECONDS[unit]


@lru_cache(maxsize=4096)
def format_duration(seconds: float) -> str:
    """The shortest exact duration in the API's grammar; ValueError where there is none (negative, NaN, infinite)."""
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{seconds} seconds is not a duration: it must be finite and not negative")
    if 0 < seconds < 1:
        return f"{_plain(seconds * 1000.0)}ms"
    for unit in ("d", "h", "m"):
        whole = seconds / _UNIT_SECONDS[unit]
        if whole >= 1 and whole.is_integer():
            return f"{_plain(whole)}{unit}"
    return f"{_plain(seconds)}s"


def parse_percent(text: str) -> float:
    """The share that a percentage such as `99.5%` names (0.995); ValueError with the remedy otherwise."""
    if _PERCENT.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a percentage: {PERCENT_REMEDY}")
    return float(text[:-1]) / 100.0


def parse_whole(quantity: object) -> int | None:
    """A quantity of Kubernetes as a whole number; None if it is none."""
    found = _QUANTITY.fullmatch(str(quantity))
    value = Fraction(found[1]) * _UNITS[found[2]] if found else None
    return value.numerator if value is not None and value.denominator == 1 else None


def format_rate(rps: float) -> str:
    """A rate in requests/s: one decimal, two digits below one, and 0 below a thousandth."""
    if rps < LEAST_SHOWN_RPS:
        return "0"
    return f"{rps:.1f}" if rps >= 0.95 else f"{rps:.2g}"


def counted(number: int, noun: str, one: str = "", several: str = "", *, of: int | None = None) -> str:
    """A number with its noun and verb, such as `1 replica waits`, `2 replicas wait` or `1 of 3 replicas waits`."""
    total = number if of is None else of
    verb = one if number == 1 or total == 1 else several
    share = f"{number}" if of is None else f"{number} of {of}"
    return f"{share} {noun}{'' if total == 1 else 's'}{' ' if verb else ''}{verb}"


def utc(at_seconds: float, form: str) -> str:
    """A Unix time in UTC, by a format of `strftime`."""
    return datetime.datetime.fromtimestamp(at_seconds, datetime.UTC).strftime(f"{form} UTC")


def hh_mm(minute: int) -> str:
    """A minute of a day, or of the next one, as HH:MM; the end of a day is 24:00."""
    hours, minutes = divmod(minute if minute <= 1440 else minute - 1440, 60)
    return f"{hours:02d}:{minutes:02d}"


def some_of(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _plain(number: float) -> str:
    """A number without exponent and without trailing zeros."""
    text = f"{abs(number):.12f}".rstrip("0").rstrip(".")
    return text or "0"
