"""A port for a program that is told where to listen."""

from __future__ import annotations

import contextlib
import random
import socket

_FIRST, _LAST = 20_000, 29_999
"""Below those that the kernel hands out: nobody gets one of these by chance before the program listens."""


def free_port() -> int:
    """Return a port of the loopback interface at which nobody listens."""
    while True:
        port = random.randint(_FIRST, _LAST)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
