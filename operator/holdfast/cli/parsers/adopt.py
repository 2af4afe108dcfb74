"""The parser of `holdfast adopt`."""

from __future__ import annotations

import argparse

from holdfast.cli.commands import COMMANDS
from holdfast.cli.parsers.connection import add_connection


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "adopt",
        help=COMMANDS["adopt"],
        epilog="example: holdfast adopt deploy/my-vllm -n prod --ttft 500ms --tpot 40ms | kubectl apply -f -",
    )
    parser.add_argument("deployment", metavar="deploy/NAME", help="the Deployment that runs vLLM")
    parser.add_argument("--ttft", default="1s", help="longest time to first token of a good request (default: 1s)")
    parser.add_argument("--tpot", default="50ms", help="longest time per output token (default: 50ms)")
    parser.add_argument("--objective", default="99%", help="share of requests that must be good (default: 99%%)")
    add_connection(parser)
