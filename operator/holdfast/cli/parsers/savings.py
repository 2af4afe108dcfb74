"""The parser of `holdfast savings`."""

from __future__ import annotations

import argparse

from holdfast.cli.commands import COMMANDS
from holdfast.cli.parsers.connection import add_connection
from holdfast.cli.parsers.explain import service_name
from holdfast.cli.values import duration_seconds
from holdfast.runtime import settings

EXAMPLE = """examples:
  holdfast savings prod/chat --prometheus-url http://localhost:9090
  holdfast savings prod/chat --prometheus-url http://localhost:9090 --since 7d --cost h100=2.95

Exit 0: the figures are printed. 1: cluster or Prometheus does not answer. 2: bad usage, or too little was recorded."""
LEAST_SECONDS, MOST_SECONDS = 600.0, 7 * 86_400.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "savings",
        help=COMMANDS["savings"],
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", type=service_name, help="the LLMService: NAME or NAMESPACE/NAME")
    parser.add_argument(
        "--since", type=_span, default=86_400.0, help="how much of the past is played, from 10m to 7d (default 1d)"
    )
    parser.add_argument(
        "--cost",
        action="append",
        default=[],
        metavar="h100=2.95",
        help="dollars per GPU and hour of an accelerator, in place of the service's costPerHour; may be repeated",
    )
    add_connection(parser)
    settings.add_arguments(parser.add_argument_group("Prometheus"), settings.OF_PROMETHEUS)


def _span(text: str) -> float:
    seconds = duration_seconds(text)
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give from 10m to 7d, as many minutes as Prometheus answers at once"
        )
    return seconds
