"""`holdfast activate`: holds the requests of a service that runs no replica; Holdfast starts it where it is needed."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys

from holdfast.activator.options import Options
from holdfast.activator.server import serve


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; 1 where a port is taken."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    options = Options(
        upstream=arguments.upstream,
        models=tuple(arguments.model),
        port=arguments.port,
        admin_port=arguments.admin_port,
        most_requests=arguments.most_requests,
        most_bytes=arguments.most_bytes,
        longest_seconds=arguments.longest,
        patient=dict(arguments.patient),
    )
    try:
        asyncio.run(serve(options, lambda: print(f"holdfast activate: for {options.upstream}", flush=True)))
    except OSError as problem:
        print(f"holdfast activate: cannot serve: {problem}; choose another --port or --admin-port", file=sys.stderr)
        return 1
    return 0
