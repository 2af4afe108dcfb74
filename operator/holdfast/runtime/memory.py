"""What the allocator and the garbage collector are told about an operator that holds much and changes little."""

from __future__ import annotations

import ctypes
import gc

# <malloc.h> of glibc
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE_BYTES = 256 * 1024
_ARENAS = 2
# A tick with a thousand services makes more objects than this and lets most of them go again. Looked at every 700, the
# default, they pass for long-lived while they are used, and every other tick the collector goes through all there are.
# The older generations follow sooner than by default, so that what goes in circles is not kept for many ticks.
_COLLECTED_AT = (50_000, 5, 2)


def frugal_allocation() -> None:
    """Give large blocks back as soon as they are free, and share heaps between threads.

    An answer of Prometheus is megabytes for a moment, read on one of a dozen threads; by default each of them keeps a
    heap as large as its largest answer. Does nothing where the C library is another than glibc.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_ARENA_MAX, _ARENAS)


def settle() -> None:
    """Once everything is read: give back what reading took, and spare the collector all that stays.

    From then on the collector comes rarely: what goes in circles is little, all else is freed when nobody needs it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTED_AT)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
