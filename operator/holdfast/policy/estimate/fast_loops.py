"""Where engines find their own limits: what a replica carries there is what it carries at its best limits."""

from __future__ import annotations

from holdfast.domain.value import value
from holdfast.policy.estimate.traffic import Seen

DOUBT_SECONDS = 180.0
"""A replica that starts, or a scrape that fails, hides the plugin for a while; the others go on as they were."""


@value
class FastLoops:
    """Accelerators whose engines all had the plugin at work, and since when fresh looks have not shown it."""

    doubted_since: tuple[tuple[str, float | None], ...] = ()

    @property
    def accelerators(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.doubted_since)


def watch_fast_loops(memory: FastLoops, seen: Seen, now: float) -> FastLoops:
    """Return what is known after this look; one that is not fresh says nothing."""
    if not seen.fresh:
        return memory
    known = dict(memory.doubted_since)
    for name, counts in seen.by_accelerator:
        if counts.exact is not None:
            known[name] = None
        elif name in known and counts.engines:
            since = known[name]
            known[name] = now if since is None else since
    kept = {name: since for name, since in known.items() if since is None or 0.0 <= now - since < DOUBT_SECONDS}
    return memory if kept == dict(memory.doubted_since) else FastLoops(tuple(sorted(kept.items())))
