"""Track which accelerators have engines that tune their own limits.

A replica there carries its rate at the best limits.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.domain.valid_traffic import Seen

DOUBT_SECONDS = 180.0
"""How long the last finding is retained while a starting replica or a failed scrape hides the plugin."""


FastLoops = Mapping[str, float | None]
"""Accelerators whose engines all run the active plugin, and since when fresh metrics have not shown it."""


def watch_fast_loops(memory: FastLoops, seen: Seen, now: float) -> FastLoops:
    """Return the state after this observation; metrics that are not fresh change nothing."""
    if not seen.fresh:
        return memory
    known = dict(memory)
    for name, counts in seen.by_accelerator:
        if counts.exact is not None:
            known[name] = None
        elif name in known and counts.engines:
            since = known[name]
            known[name] = now if since is None else since
    return {name: since for name, since in known.items() if since is None or 0.0 <= now - since < DOUBT_SECONDS}
