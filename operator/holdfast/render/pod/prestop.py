"""Hold the pod open until no proxy sends it new requests: `python3 prestop.py SECONDS PORT`.

Kubernetes runs it before SIGTERM. From then on the engine answers `Connection: close`, so that keep-alive clients
go elsewhere. (The sleep action of Kubernetes is newer than the oldest cluster we support.)
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence


def main(arguments: Sequence[str], sleep: Callable[[float], None] = time.sleep) -> None:
    """Tell the engine to drain, then wait for the endpoints to propagate."""
    seconds, port = float(arguments[0]), int(arguments[1])
    with open(os.environ.get("HOLDFAST_DRAIN_FILE", "/tmp/holdfast-draining"), "w"):  # noqa: S108
        pass
    # An engine that still loads has no client to wait for: its GPU is free at once.
    if any(listens(host, port) for host in ("localhost", socket.gethostname())):
        sleep(seconds)


def listens(host: str, port: int) -> bool:
    """Whether anything accepts connections there; only a refusal or an unknown name is a no."""
    try:
        socket.create_connection((host, port), timeout=2.0).close()
    except (ConnectionRefusedError, socket.gaierror):
        return False
    except OSError:
        return True
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
