"""Values of flags that several commands take."""

from __future__ import annotations

import argparse
import math

from holdfast.api.quantities import parse_duration_seconds


def number(text: str, least: float, most: float, wanted: str) -> float:
    """A number between two bounds; ArgumentTypeError says what is `wanted`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r}: give {wanted}")
    return value


def duration_seconds(text: str) -> float:
    """A duration as the API writes it, such as 90s; ArgumentTypeError."""
    try:
        return parse_duration_seconds(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
