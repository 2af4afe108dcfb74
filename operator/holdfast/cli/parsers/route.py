"""The parser of `holdfast route`."""

from __future__ import annotations

import argparse

from holdfast.cli.commands import COMMANDS
from holdfast.cli.values import number
from holdfast.router.options import POLICIES, Options

DEFAULTS = Options("")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "route", help=COMMANDS["route"], epilog="example: holdfast route --replicas chat-replicas.prod.svc"
    )
    parser.add_argument("--replicas", required=True, help="DNS name that has one address for each replica")
    parser.add_argument(
        "--replica-port", type=_port, default=DEFAULTS.replica_port, help="port of the replicas (default %(default)s)"
    )
    parser.add_argument("--port", type=_port, default=DEFAULTS.port, help="port for clients (default %(default)s)")
    parser.add_argument(
        "--metrics-port", type=_port, default=DEFAULTS.metrics_port, help="port of /metrics (default %(default)s)"
    )
    parser.add_argument(
        "--linger",
        type=_seconds,
        default=DEFAULTS.linger_seconds,
        help="seconds to take requests after SIGTERM (default %(default)s)",
    )
    parser.add_argument(
        "--policy", choices=POLICIES, default=DEFAULTS.policy, help="how a replica is chosen (default %(default)s)"
    )
    parser.add_argument("--prefill", default="", help="the same name of a prefill pool, if there is one")
    parser.add_argument("--model", default="", help="what requests call the model; needed with --prefill")


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r}: give a port, 1 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    return number(text, 0.0, 3_600.0, "seconds up to an hour")
