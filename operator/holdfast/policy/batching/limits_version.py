"""The number under which limits reach engines: no store of its own, it is read back from where limits were written.

An engine takes limits with a higher number than those in force and passes over all others. So a number must rise with
the content, and must never have stood for another content. Both hold with one operator after the other:

- Content that is known under the highest number keeps it: a new leader finds what its predecessor wrote, in ConfigMap
  and annotations, and writes nothing.
- Anything else gets a number above all that were ever seen, and not below the clock in seconds: so even what nobody
  can see any more (a last write of the predecessor that was overwritten at once) bears a lower number than ours.
- Where two contents bear the same number, or an engine reports a higher one than is known anywhere, no engine can be
  sure to follow: then the number rises as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from holdfast_engine.rules import Limits

LARGEST_LEAD = 2**32
"""Numbers further ahead of the clock, 136 years, only a person can have written: they are passed over.

Whoever rises above such a number leaves no room for those to come, and takes the engines that follow along: one edited
pod would make all of them deaf. It is named alone, until it is gone.
"""

_LARGEST_CLOCK = 2**52


def numbered(wanted: Limits, known: Collection[Limits], reported: Iterable[int], now: float) -> Limits:
    """Return `wanted` with its version: the one it bears among the `known` limits, or a new one.

    `known` are all limits of this accelerator that stand anywhere or were last decided, `reported` the versions that
    engines say are in force, `now` is in seconds since the epoch. The version of `wanted` itself means nothing.
    """
    clock = int(min(max(now, 0.0), _LARGEST_CLOCK))
    usable = [limits for limits in known if limits.version <= clock + LARGEST_LEAD]
    newest = max((limits.version for limits in usable), default=0)
    reached = max((version for version in (newest, *reported) if version <= clock + LARGEST_LEAD), default=0)
    kept = replace(wanted, version=newest)
    if newest > 0 and reached == newest and all(limits == kept for limits in usable if limits.version == newest):
        return kept
    return replace(wanted, version=max(reached + 1, clock))
