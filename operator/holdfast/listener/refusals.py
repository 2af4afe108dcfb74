"""What ports refuse: counted by reason, and logged with the number at most once a minute.

A client can send thousands of malformed requests in a second; aiohttp logs a traceback for each.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError
from prometheus_client import CollectorRegistry, Counter

_LOG = logging.getLogger(__name__)
LOG_SECONDS = 60.0
"""Between two lines of one port for one reason; the next line has the number of those in between."""
_MOST_CHARACTERS = 200

MALFORMED = (HttpProcessingError, RequestPayloadError)
"""What aiohttp raises where the bytes of a client are not HTTP."""


class Refusal(enum.StrEnum):
    """Why a port closed a connection or did not answer a request."""

    MALFORMED = "malformed"  # not HTTP
    LATE = "late"  # no head in time
    LARGE = "large"  # the largest of too many unfinished bytes
    CROWDED = "crowded"  # made room for another connection, or found none
    SLOW = "slow"  # did not read its answer
    FAILED = "failed"  # an error of ours


_SENTENCES = {
    Refusal.MALFORMED: "requests that are not valid HTTP",
    Refusal.LARGE: "requests that were unfinished and too large",
    Refusal.CROWDED: "connections that were idle or too many",
    Refusal.FAILED: "requests after an error of its own",
}
"""Late and slow clients are counted only: browsers and load balancers open connections that they do not use."""


class Refusals:
    """Counts what one port refuses."""

    def __init__(self, port: str, counter: Counter, clock: Callable[[], float] = time.monotonic) -> None:
        self._port = port
        self._counters = {why: counter.labels(port, why.value) for why in Refusal}
        self._clock = clock
        self._unlogged = dict.fromkeys(Refusal, 0)
        self._logged_at: dict[Refusal, float] = {}

    def count(self, why: Refusal, address: str | None, error: BaseException | None = None) -> None:
        """Count one, and log it unless a line with its reason was logged lately."""
        self._counters[why].inc()
        self._unlogged[why] += 1
        now = self._clock()
        if why not in _SENTENCES or now - self._logged_at.get(why, -LOG_SECONDS) < LOG_SECONDS:
            return
        self._logged_at[why], number, self._unlogged[why] = now, self._unlogged[why], 0
        _LOG.warning(
            "port %s refused %s: %d since the last such line; the last came from %s%s. For %.0f s, further ones are "
            "counted only. Find the client, or admit only the clients that need this port (docs/security.md, Ports)",
            self._port, _SENTENCES[why], number, address, f" ({_words(error)})" if error else "", LOG_SECONDS,
            exc_info=error if why is Refusal.FAILED else None,
        )  # fmt: skip

    def failed(self, error: BaseException | None, address: str | None) -> None:
        """Count what aiohttp or a handler raised, as the fault of the client or of the server."""
        self.count(Refusal.MALFORMED if isinstance(error, MALFORMED) else Refusal.FAILED, address, error)


def counter(registry: CollectorRegistry, prefix: str) -> Counter:
    """Return the counter of all ports of a process."""
    told = "Number of connections and requests that a port refused, by reason."
    return Counter(f"{prefix}_port_refusals", told, ["port", "reason"], registry=registry)


def _words(error: BaseException) -> str:
    """The error in one line: a client chose parts of it."""
    return f"{type(error).__name__}: {ascii(' '.join(str(error).split()))[:_MOST_CHARACTERS]}"
