"""A request that passes from a prefill engine to a decode engine, and what the one tells the other of it.

It travels in `kv_transfer_params`, which a router passes on unchanged: docs/designs/0034-prefill-decode.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast_engine.objectives.rules import LONGEST_WAIT_SECONDS

KEY = "holdfast"
LEFT_SHARE = 0.25
"""vLLM's decode engine renews the lease of a request that waits in it every sixth of it: one with less than this share
left may be over before."""
# No number of a clock is larger; a body may hold any.
_LARGEST = 1e12


class Handover(NamedTuple):
    """When a prefill engine got a request and was done with it, in seconds of its wall clock, and for how many more
    seconds it keeps the blocks of KV cache."""

    arrived: float
    finished: float
    lease: float

    def seconds_before(self, received: float, longest_way_seconds: float) -> float:
        """How long before `received` (s, this engine's wall clock) the request came; an impossible part is left out."""
        took, way = self.finished - self.arrived, received - self.finished
        return _believed(took, LONGEST_WAIT_SECONDS) + _believed(way, longest_way_seconds)

    def is_over(self, now: float) -> bool:
        """Whether the blocks may be another request's before they are read."""
        return now > self.finished + (1.0 - LEFT_SHARE) * self.lease


def handover_of(request: object) -> Handover | None:
    """What a prefill engine tells of a request, None where it tells nothing."""
    found = _params(request).get(KEY)
    told = [found.get(name) for name in Handover._fields] if isinstance(found, dict) else []
    numbers = [float(each) for each in told if isinstance(each, int | float) and 0.0 <= each < _LARGEST]
    return Handover(*numbers) if len(numbers) == len(Handover._fields) else None


def goes_on(request: object) -> bool:
    """Whether a decode engine goes on with a request that ends well here."""
    return bool(_params(request).get("do_remote_decode"))


def forget_blocks(request: object) -> bool:
    """Have a decode engine compute the prompt itself; returns whether it would have read blocks."""
    params = _params(request)
    would_read = bool(params.get("do_remote_prefill"))
    if would_read:
        params["do_remote_prefill"] = False
    return would_read


def _params(request: object) -> dict[str, Any]:
    found = getattr(request, "kv_transfer_params", None)
    return found if isinstance(found, dict) else {}


def _believed(seconds: float, most: float) -> float:
    return seconds if 0.0 <= seconds <= most else 0.0
