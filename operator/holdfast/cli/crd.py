"""`holdfast crd`: the CustomResourceDefinition generated from the types."""

from __future__ import annotations

import argparse
import json


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "crd", help="print the CRD generated from the types", epilog="example: holdfast crd | kubectl apply -f -"
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of YAML")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the CRD."""
    from holdfast.api import crd

    print(json.dumps(crd.crd(), indent=2) if arguments.json else crd.crd_yaml(), end="")
    return 0
