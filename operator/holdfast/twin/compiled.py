"""Compiled functions where numba is installed; the same functions in plain Python, slower, where it is not.

Machine code is kept for later processes, in a folder of its own for every state of the sources: numba itself compares
only the file that a function stands in, and not those of the functions it calls.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from importlib import resources, util
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])

COMPILES = util.find_spec("numba") is not None
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
"""Divisions by zero are not looked for, and nothing is allocated, so that no reference to an array is counted."""
_INNER: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
SOURCES = {
    "holdfast.twin": (
        "arrivals",
        "compiled",
        "engines",
        "fast_loop",
        "fast_loop_arrays",
        "law_fit",
        "queue_lanes",
        "state_arrays",
        "step_end",
        "step_plan",
        "timers",
    ),
    "holdfast.enginemodel": ("host", "scheduler"),
    "holdfast_engine": ("arithmetic", "fastloop", "leastsquares", "order", "steplaw", "steptimes", "tpot_slack"),
}
"""Modules that compiled functions and their constants come from, by package."""


def compiled(function: Function) -> Function:
    """Compile a function of numbers and arrays at its first call; threads run it beside each other."""
    return _compiled(function, nogil=True) if COMPILES else function


def inner(function: Function) -> Function:
    """Compile a function that only compiled ones call, without what Python needs to call it: in half of the time."""
    return _compiled(function, **_INNER) if COMPILES else function


@functools.cache
def compile_with(module: ModuleType) -> None:
    """Let compiled functions call the functions of a module as they stand there: they are compiled with them."""
    if not COMPILES:
        return
    from numba.extending import register_jitable

    for function in vars(module).values():
        if inspect.isfunction(function) and function.__module__ == module.__name__:
            register_jitable(**_OPTIONS, **_INNER)(function)


def _compiled(function: Function, **options: bool) -> Function:
    import numba

    # Its types know neither this setting nor these options.
    config, njit = cast(Any, numba.config), cast(Any, numba.njit)
    asked = config.CACHE_DIR
    config.CACHE_DIR = str(Path(asked or Path(__file__).parent / "__pycache__") / f"numba-{_digest()}")
    try:
        return cast(Function, njit(cache=True, **_OPTIONS, **options)(function))
    except RuntimeError:  # no folder can be written, as in a pod: then each process compiles for itself
        return cast(Function, njit(**_OPTIONS, **options)(function))
    finally:
        config.CACHE_DIR = asked


@functools.cache
def _digest() -> str:
    """Of all sources."""
    digest = hashlib.sha256()
    for package, names in SOURCES.items():
        for name in names:
            digest.update((resources.files(package) / f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]
