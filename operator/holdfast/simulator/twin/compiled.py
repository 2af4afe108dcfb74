"""Compiled functions where numba is installed; the same functions in plain Python, slower, where it is not."""

from __future__ import annotations

from collections.abc import Callable
from importlib import util
from typing import TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])

COMPILES = util.find_spec("numba") is not None


def compiled(function: Function) -> Function:
    """Compile a function of numbers and arrays at its first call, and keep the machine code for later processes."""
    if not COMPILES:
        return function
    import numba

    return cast(Function, numba.njit(cache=True)(function))
