"""The parser of `holdfast explain`."""

from __future__ import annotations

import argparse
import datetime

from holdfast.cli.commands import COMMANDS
from holdfast.cli.parsers.connection import add_connection, add_operator

EXAMPLE = """examples:
  holdfast explain prod/chat
  holdfast explain prod/chat --at 2026-01-31T12:00:00Z --json

Exit 0: a decision is printed. 1: there is none, or the cluster does not answer. 2: bad usage."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "explain",
        help=COMMANDS["explain"],
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", type=service_name, help="the LLMService: NAME or NAMESPACE/NAME")
    parser.add_argument(
        "--at",
        type=_time,
        default=None,
        help="explain the last change before this time (ISO 8601); its Event must still exist, for one hour by default",
    )
    add_connection(parser)
    add_operator(parser)


def service_name(text: str) -> str:
    """A name with or without namespace, as it was given."""
    parts = text.split("/")
    if not all(parts) or len(parts) > 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a service: give NAME or NAMESPACE/NAME")
    return text


def _time(text: str) -> datetime.datetime:
    try:
        found = datetime.datetime.fromisoformat(text)
        found.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: give it as 2026-01-31T12:00:00Z") from None
    return found
