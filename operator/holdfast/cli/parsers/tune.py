"""The parser of `holdfast tune`."""

from __future__ import annotations

import argparse

from holdfast.cli.commands import COMMANDS
from holdfast.tools.tune.options import add_arguments

EXAMPLE = """examples:
  holdfast tune -f examples/chat.yaml --prompt-tokens 1155 --output-tokens 211
  holdfast tune --url http://10.0.0.7:8000 --limits-file /run/holdfast/engine-limits --accelerator h100 \\
    --slo ttft=500ms,tpot=30ms --lengths azure-conv.csv --format azure
  holdfast tune --url http://10.0.0.7:8000 --accelerator l40s --slo ttft=2s,tpot=100ms \\
    --restart-command './restart.sh {max_num_seqs} {max_num_batched_tokens}'
  holdfast tune -f examples/chat.yaml --ladder --concurrency 25 --prompt-tokens 100 --output-tokens 100 --length-cv 0.5

Exit 0: limits were found. 1: no limits meet the objectives, or no trial was possible. 2: bad usage or input."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "tune",
        help=COMMANDS["tune"],
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
