"""The parser of `holdfast simulate`."""

from __future__ import annotations

import argparse
from pathlib import Path

from holdfast.cli.commands import COMMANDS
from holdfast.twin.scenarios.inputs import ALL_POLICIES, POLICY_NAMES

EXAMPLE = """examples:
  holdfast simulate examples/scenarios/step.yaml
  holdfast simulate step.yaml --policy holdfast-slow --policy static:4 --policy hpa --seeds 1 --json - --plot step.html
  holdfast simulate step.yaml --policy hpa --sweep-knob --seeds 1

Without a GPU and without a cluster: engines are simulated step by step with measured step times."""
DEFAULT_POLICY, DEFAULT_SEEDS = "holdfast-slow", 5
DATA_VARIABLE = "HOLDFAST_DATA"
PAGE = ".html"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "simulate",
        help=COMMANDS["simulate"],
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "scenario", type=Path, metavar="SCENARIO.yaml", help="scenario file: load, cluster, services and faults"
    )
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help=f"{', '.join(POLICY_NAMES)} (static:4 is a fixed size), or {ALL_POLICIES}: all that support "
        f"the scenario, except static; may be repeated; default {DEFAULT_POLICY}",
    )
    knobs = parser.add_mutually_exclusive_group()
    knobs.add_argument("--knob", action="append", default=[], metavar="NAME=VALUE", help="setting of a policy")
    knobs.add_argument(
        "--sweep-knob",
        action="store_true",
        help="vary the main knob of each policy from a quarter to four times its default",
    )
    parser.add_argument(
        "--seeds",
        type=_seeds,
        default=DEFAULT_SEEDS,
        help=f"runs of each policy, with seeds 1, 2, ... (default {DEFAULT_SEEDS})",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=None,
        metavar="DIR",
        help=(
            "base folder of paths in the scenario; default: "
            f"{DATA_VARIABLE} if the files are there, else the folder of the scenario"
        ),
    )
    parser.add_argument(
        "--json", default=None, metavar="FILE", help="file for all results as JSON; - is standard output"
    )
    parser.add_argument(
        "--plot", "--html", type=_page, default=None, metavar="FILE.html", help="file for an HTML report"
    )


def _seeds(text: str) -> int:
    if not text.isdecimal() or len(text) > len("1000") or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1 to 1000")
    return int(text)


def _page(text: str) -> Path:
    path = Path(text)
    # A folder passes here: it is reported as one later, together with the folders of other options.
    if path.suffix != PAGE and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: give a file name that ends with {PAGE}")
    return path
