"""`holdfast dashboards`: Grafana's JSON."""

from __future__ import annotations

import argparse
import sys

from holdfast.cli.parsers.dashboards import DASHBOARDS
from holdfast.monitoring import files


def run(arguments: argparse.Namespace) -> int:
    """Print one, or write all."""
    wanted = files.dashboard_files()
    if arguments.name:
        wanted = {name: text for name, text in wanted.items() if name == f"holdfast-{arguments.name}.json"}
    if arguments.out is None:
        if len(wanted) > 1:
            print(f"holdfast dashboards: give one of {', '.join(DASHBOARDS)}, or a folder with --out", file=sys.stderr)
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
