"""`holdfast crd`: the CustomResourceDefinitions generated from the types."""

from __future__ import annotations

import argparse
import json
import sys

from holdfast.api import crd


def run(arguments: argparse.Namespace) -> int:
    """Print all, or write them."""
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
