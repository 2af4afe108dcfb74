"""`holdfast crd`: the CustomResourceDefinitions generated from the types."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "crd", help="print the CRDs generated from the types", epilog="example: holdfast crd | kubectl apply -f -"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder to write one file per CRD to")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of YAML documents")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print all, or write them."""
    from holdfast.api import crd

    if arguments.out is None:
        items = [crd.crd(of) for of in crd.DEFINITIONS]
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2)
        print(listed if arguments.json else "---\n".join(crd.files().values()), end="")
        return 0
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        for name, text in crd.files().items():
            (arguments.out / name).write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"holdfast crd: --out {arguments.out}: {error.strerror}", file=sys.stderr)
        return 2
    return 0
