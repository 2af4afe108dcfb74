"""What the read-only commands share: one connection, one service or all, and errors in one line."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kubernetes.aio.config import ConfigException

from holdfast.act.api import ApiError, ApiPort, ApiUnreachable, connect
from holdfast.api.llmservice import GROUP, PLURAL, VERSION

Body = dict[str, Any]


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Add the flags that every reading command takes."""
    parser.add_argument("-n", "--namespace", default="default", help="namespace of the service (default: default)")
    parser.add_argument("--kubeconfig", type=Path, default=None, help="kubeconfig file (default: KUBECONFIG)")
    parser.add_argument("--json", action="store_true", help="JSON for machines")


def read(command: str, kubeconfig: Path | None, work: Callable[[ApiPort], Awaitable[int]]) -> int:
    """Run `work` with a connection; 1 with one line on standard error when the cluster says no or is not there."""

    async def connected() -> int:
        async with connect(kubeconfig) as api:
            return await work(api)

    try:
        return asyncio.run(connected())
    except (ApiError, ApiUnreachable) as error:
        print(f"holdfast {command}: {error}", file=sys.stderr)
    except (ConfigException, OSError) as error:
        print(f"holdfast {command}: no cluster: {error}; set KUBECONFIG or --kubeconfig", file=sys.stderr)
    return 1


def services_path(namespace: str | None, name: str = "") -> str:
    """Return the path of one service, of a namespace's, or of all."""
    place = "" if namespace is None else f"/namespaces/{namespace}"
    return f"/apis/{GROUP}/{VERSION}{place}/{PLURAL}" + (f"/{name}" if name else "")
