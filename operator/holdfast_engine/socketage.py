"""How long a request has waited for the API server's thread: the kernel knows it, where nothing in the process does.

A thread that is busy takes in connections late (uvloop: one in each turn of its loop), and until then a request lies
in the kernel.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

# struct tcp_info of Linux: tcpi_last_data_recv, milliseconds since data came last.
_LAST_DATA_AT, _MILLISECONDS = 52, struct.Struct("=I")


def waited_seconds(receive: Any) -> float:
    """Seconds since the last bytes of a request came, 0 where the server (uvicorn on Linux, TCP) does not tell."""
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
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
