"""How long a request has waited for the API server's thread: the kernel knows it, where nothing in the process does.

A thread that is busy takes in connections late (uvloop: one in each turn of its loop), and until then a request lies
in the kernel.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

# struct tcp_info of Linux: tcpi_last_data_recv, milliseconds since data came last.
_LAST_DATA_AT, _MILLISECONDS = 52, struct.Struct("=I")
_MOST_CONNECTIONS = 16384


class ReadingDelays:
    """How long requests have waited to be read.

    One that was sent before the answer to the last request of its connection (HTTP pipelining) waits for that answer,
    as its client chose: this time does not count. Of names that are used again the older answer changes nothing.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._answered_at: dict[Any, float] = {}

    def seconds(self, receive: Any) -> float:
        """Seconds since the last bytes of a request came, or since its connection was free for it."""
        waited = waited_seconds(receive)
        answered_at = self._answered_at.get(_peer(receive)) if waited > 0.0 else None
        return waited if answered_at is None else min(waited, max(0.0, self._clock() - answered_at))

    def answered(self, receive: Any) -> None:
        """The end of an answer is being written."""
        peer = _peer(receive)
        if peer is not None:
            self._answered_at.pop(peer, None)
            self._answered_at[peer] = self._clock()
            if len(self._answered_at) > _MOST_CONNECTIONS:
                del self._answered_at[next(iter(self._answered_at))]


def waited_seconds(receive: Any) -> float:
    """Seconds since the last bytes of a request came, 0 where the server (uvicorn on Linux, TCP) does not tell."""
    transport = _transport(receive)
    found = None if transport is None else transport.get_extra_info("socket")
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6) or not hasattr(socket, "TCP_INFO"):
        return 0.0
    info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_AT + _MILLISECONDS.size)
    if len(info) < _LAST_DATA_AT + _MILLISECONDS.size:
        return 0.0
    return 1e-3 * float(_MILLISECONDS.unpack_from(info, _LAST_DATA_AT)[0])


def is_gone(receive: Any) -> bool:
    """Whether the client has hung up, as far as the server (uvicorn) tells."""
    return bool(getattr(getattr(receive, "__self__", None), "disconnected", False))


def _transport(receive: Any) -> Any:
    return getattr(getattr(receive, "__self__", None), "transport", None)


def _peer(receive: Any) -> Any:
    """The other end of the connection as the kernel names it, whatever headers say."""
    transport = _transport(receive)
    return None if transport is None else transport.get_extra_info("peername")
