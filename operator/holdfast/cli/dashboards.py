"""`holdfast dashboards`: Grafana's JSON."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

_NAMES = ("fleet", "service")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "dashboards", help="print the dashboards for Grafana", epilog="example: holdfast dashboards --out ./dashboards"
    )
    parser.add_argument("name", nargs="?", choices=_NAMES, help="name of the dashboard to print")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder to write one file per dashboard to")
    parser.add_argument("--json", action="store_true", help="accepted for consistency; the output is always JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print one, or write all."""
    from holdfast.monitoring import files

    wanted = files.dashboard_files()
    if arguments.name:
        wanted = {name: text for name, text in wanted.items() if name == f"holdfast-{arguments.name}.json"}
    if arguments.out is None:
        if len(wanted) > 1:
            print(f"holdfast dashboards: give one of {', '.join(_NAMES)}, or a folder with --out", file=sys.stderr)
            return 2
        print("".join(wanted.values()), end="")
        return 0
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        for name, text in wanted.items():
            (arguments.out / name).write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"holdfast dashboards: --out {arguments.out}: {error.strerror}", file=sys.stderr)
        return 2
    return 0
