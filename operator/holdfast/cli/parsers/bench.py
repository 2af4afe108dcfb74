"""The parser of `holdfast bench`."""

from __future__ import annotations

import argparse

from holdfast.cli.commands import COMMANDS
from holdfast.tools.bench.runs import options

EXAMPLE = """examples:
  holdfast bench --url http://10.0.0.7:8000 --rate 5 --slo ttft=500ms,tpot=30ms
  holdfast bench --url http://10.0.0.7:8000 --trace azure-conv.csv --format azure --duration 10m --plot bench.html
  holdfast bench --url http://10.0.0.7:8000 --sweep --slo ttft=500ms,tpot=30ms --plot sweep.html --plot sweep.png
  holdfast bench --url http://10.0.0.7:8000 --concurrency 64 --prompt-tokens 1000 --output-tokens 200 --json
  holdfast bench --url http://10.0.0.7:8000 --throughput --requests 1000
  holdfast bench --from records.jsonl --slo ttft=300ms --threshold 'p99 E2E <= 500 ms' --threshold 'mean TPOT <= 20 ms'
  holdfast bench --overlay l40s.json h100.json:2 --plot compared.png

Exit 0: measured, the objective of --slo is attained and each --threshold passes. 1: one of them is missed, the endpoint
did not answer, or the result is rejected because the client itself was too slow. 2: bad usage or input."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "bench",
        help=COMMANDS["bench"],
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_arguments(parser)
