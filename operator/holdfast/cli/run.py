"""`holdfast run`: the operator."""

from __future__ import annotations

import argparse
import os
import sys

from holdfast.runtime import settings


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and one flag per setting."""
    parser = subparsers.add_parser(
        "run",
        help="run the operator, in a cluster or with a kubeconfig",
        epilog="example: holdfast run --prometheus-url http://prometheus.monitoring:9090",
    )
    settings.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run until leadership is lost or a signal comes; 2 for settings that make no sense."""
    try:
        wanted = settings.read_settings(arguments, os.environ)
    except settings.SettingsError as error:
        print(f"holdfast run: {error}", file=sys.stderr)
        return 2
    from holdfast.runtime import wiring  # the Kubernetes client loads only once the settings make sense

    return wiring.run(wanted)
