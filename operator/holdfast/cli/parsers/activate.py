"""The parser of `holdfast activate`."""

from __future__ import annotations

import argparse
import math

from yarl import URL

from holdfast.activator.options import Options
from holdfast.cli.commands import COMMANDS

DEFAULTS = Options(URL())


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "activate",
        help=COMMANDS["activate"],
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
    parser.add_argument(
        "--patient",
        action="append",
        type=_patient,
        default=[],
        metavar="NAME=SECONDS",
        help="class whose first token is due later than the service's, inf for Batch; may be repeated",
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


def _patient(text: str) -> tuple[str, float]:
    name, _, seconds = text.partition("=")
    return name, math.inf if seconds == "inf" else _seconds(seconds)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds <= 86_400.0:
        raise argparse.ArgumentTypeError(f"{text!r}: give seconds up to a day")
    return seconds
