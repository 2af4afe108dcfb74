"""`holdfast activate`: holds the requests of a service that runs no replica; Holdfast starts it where it is needed."""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import sys

from yarl import URL

from holdfast.activator.server import Options, serve

DEFAULTS = Options(URL())


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "activate",
        help="hold requests of a service without replicas until one is ready",
        epilog="example: holdfast activate --upstream http://chat-engines.prod.svc:8000",
    )
    parser.add_argument(
        "--upstream",
        type=_address,
        required=True,
        help="address of the engines; the only address that is connected to",
    )
    parser.add_argument(
        "--model", action="append", default=[], help="model name shown at /v1/models meanwhile; may be repeated"
    )
    parser.add_argument("--port", type=_whole, default=DEFAULTS.port, help="port for clients (default %(default)s)")
    parser.add_argument(
        "--admin-port",
        type=_whole,
        default=DEFAULTS.admin_port,
        help="port for /held, /metrics and /healthz (default %(default)s)",
    )
    parser.add_argument(
        "--most-requests",
        type=_whole,
        default=DEFAULTS.most_requests,
        help="maximum number of held requests (default %(default)s)",
    )
    parser.add_argument(
        "--most-bytes",
        type=_whole,
        default=DEFAULTS.most_bytes,
        help="maximum bytes of held requests (default %(default)s)",
    )
    parser.add_argument(
        "--longest",
        type=_seconds,
        default=DEFAULTS.longest_seconds,
        help="maximum seconds that a request is held (default %(default)s)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop; 1 where a port is taken."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    options = Options(
        upstream=arguments.upstream,
        models=tuple(arguments.model),
        port=arguments.port,
        admin_port=arguments.admin_port,
        most_requests=arguments.most_requests,
        most_bytes=arguments.most_bytes,
        longest_seconds=arguments.longest,
    )
    try:
        asyncio.run(serve(options, lambda: print(f"holdfast activate: for {options.upstream}", flush=True)))
    except OSError as problem:
        print(f"holdfast activate: cannot serve: {problem}; choose another --port or --admin-port", file=sys.stderr)
        return 1
    return 0


def _address(text: str) -> URL:
    try:
        address = URL(text)
        bare = address == address.origin() and address.port is not None
    except ValueError:
        bare = False
    if not bare or address.scheme != "http":
        raise argparse.ArgumentTypeError(f"{text!r}: give http://HOST:PORT without a path")
    return address


def _whole(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) < 2**40:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds <= 86_400.0:
        raise argparse.ArgumentTypeError(f"{text!r}: give seconds up to a day")
    return seconds
