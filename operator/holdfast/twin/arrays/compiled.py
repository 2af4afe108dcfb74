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
SOURCES = (
    "holdfast.enginemodel.host",
    "holdfast.enginemodel.scheduler",
    "holdfast.twin.arrays.arrivals",
    "holdfast.twin.arrays.batch",
    "holdfast.twin.arrays.compiled",
    "holdfast.twin.arrays.engines",
    "holdfast.twin.arrays.fast_loop",
    "holdfast.twin.arrays.fast_loop_arrays",
    "holdfast.twin.arrays.queue_lanes",
    "holdfast.twin.arrays.state_arrays",
    "holdfast.twin.arrays.step_end",
    "holdfast.twin.arrays.step_plan",
    "holdfast.twin.arrays.timers",
    "holdfast.twin.arrays.token_share",
    "holdfast_engine.law.arithmetic",
    "holdfast_engine.fastloop",
    "holdfast_engine.law.leastsquares",
    "holdfast_engine.queue.batch",
    "holdfast_engine.queue.order",
    "holdfast_engine.law.steplaw",
    "holdfast_engine.law.steptimes",
    "holdfast_engine.queue.tokenshare",
    "holdfast_engine.queue.tpot_slack",
)
"""Modules that compiled functions and their constants come from."""


def compiled(function: Function) -> Function:
    """Compile a function of numbers and arrays at its first call, and keep it; threads run it in parallel."""
    return _kept(function) if COMPILES else function


def inner(function: Function) -> Function:
    """Compile a function that only compiled ones call, without what Python needs to call it: in half of the time.

    It is kept within those: a folder with each of these functions, too, takes longer to write and to look through.
    """
    return _njit(function, **_INNER) if COMPILES else function


@functools.cache
def compile_with(module: ModuleType) -> None:
    """Let compiled functions call the functions of a module as they stand there: they are compiled with them."""
    if not COMPILES:
        return
    from numba.extending import register_jitable

    for function in vars(module).values():
        if inspect.isfunction(function) and function.__module__ == module.__name__:
            register_jitable(**_OPTIONS, **_INNER)(function)


def _kept(function: Function) -> Function:
    import numba

    config = cast(Any, numba.config)  # its types do not know this setting
    asked = config.CACHE_DIR
    config.CACHE_DIR = str(Path(asked or Path(__file__).parent / "__pycache__") / f"numba-{_digest()}")
    try:
        return _njit(function, cache=True, nogil=True)
    except RuntimeError:  # no folder can be written, as in a pod: then each process compiles for itself
        return _njit(function, nogil=True)
    finally:
        config.CACHE_DIR = asked


def _njit(function: Function, **options: bool) -> Function:
    import numba

    njit = cast(Any, numba.njit)  # nor these options
    return cast(Function, njit(**_OPTIONS, **options)(function))


@functools.cache
def _digest() -> str:
    """Of all sources."""
    digest = hashlib.sha256()
    for module in SOURCES:
        package, _, name = module.rpartition(".")
        digest.update((resources.files(package) / f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]
