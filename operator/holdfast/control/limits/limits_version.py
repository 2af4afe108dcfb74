"""Version numbers of limits for engines; they are read back from where limits were written, and stored nowhere else.

An engine accepts limits with a higher version than those in force, and ignores all others. So a version must rise with
each new content, and must never be reused for another content. Both must hold across a change of leader:

- Content that is known under the highest version keeps it. A new leader finds what its predecessor wrote in ConfigMap
  and annotations, and writes nothing.
- Other content gets a version above all that were ever observed, and at least the clock in seconds. So a write of the
  predecessor that was overwritten at once, and is no longer visible, has a lower version.
- If two contents have the same version, engines may not follow. The same holds if an engine reports a higher version
  than is known anywhere. In both cases the version rises as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from holdfast_engine.objectives.rules import Limits

LARGEST_LEAD = 2**32
"""Lead over the clock (136 years) beyond which a version is ignored: only a person can have written it.

Exceeding such a version would leave no room for later ones. Engines that accept it would then ignore all correct
versions, after one edited pod. Only the engine with such a version is reported, until the version is removed.
"""

_LARGEST_CLOCK = 2**52


def numbered(wanted: Limits, known: Collection[Limits], reported: Iterable[int], now: float) -> Limits:
    """Return `wanted` with its version: the one it has among the `known` limits, or a new one.

    `known` are all limits of this accelerator that are stored anywhere or were decided last. `reported` are the
    versions that engines report as in force. `now` is in seconds since the epoch. The version of `wanted` itself is
    ignored.
    """
    clock = int(min(max(now, 0.0), _LARGEST_CLOCK))
    usable = [limits for limits in known if limits.version <= clock + LARGEST_LEAD]
    newest = max((limits.version for limits in usable), default=0)
    reached = max((version for version in (newest, *reported) if version <= clock + LARGEST_LEAD), default=0)
    current = replace(wanted, version=newest)
    if newest > 0 and reached == newest and all(limits == current for limits in usable if limits.version == newest):
        return current
    return replace(wanted, version=max(reached + 1, clock))
