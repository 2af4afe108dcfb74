"""Settings of the allocator and the garbage collector for a process that holds much memory and changes little of it."""

from __future__ import annotations

import ctypes
import gc

# <malloc.h> of glibc
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE_BYTES = 256 * 1024
_ARENAS = 2
# A tick with a thousand services allocates more objects than this and frees most of them. With the default of 700 they
# are promoted while in use, and every other tick the collector scans all objects.
# The older generations are collected sooner than by default, so that cycles do not survive many ticks.
_COLLECTED_AT = (50_000, 5, 2)


def frugal_allocation() -> None:
    """Collect garbage rarely, give large blocks back as soon as they are free, and share heaps between threads.

    There are few cycles, and reference counting frees everything else; while all objects are read and the history is
    learned, the default of the collector takes a quarter of the CPU. An answer of Prometheus takes megabytes for a
    moment, on one of a dozen threads; by default each thread retains a heap as large as its largest answer. Where the C
    library is not glibc, heaps stay as they are.
    """
    gc.set_threshold(*_COLLECTED_AT)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_ARENA_MAX, _ARENAS)


def settle() -> None:
    """After the initial read: return free memory, and exclude the surviving objects from collection."""
    gc.collect()
    gc.freeze()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
