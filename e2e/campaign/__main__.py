"""Drawn specs, or drawn faults; what is found is drawn again with the same seed.

python -m e2e.cluster run -- python -m e2e.campaign specs --seed 51 --specs 2000
"""

from __future__ import annotations

import argparse
import random
import sys

from e2e import stack
from e2e.campaign import agreement
from e2e.cluster import nodes


def main() -> int:
    options = _parser().parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    print(f"seed {seed}", flush=True)
    return 0 if options.run(options, seed) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    specs = parts.add_parser("specs", help="the API server and the types say the same of each")
    specs.add_argument("--specs", type=int, default=2000)
    specs.set_defaults(run=_specs)
    for part in (specs,):
        part.add_argument("--seed", type=int, help="default: another one each time")
        part.add_argument("--only", type=int, help="the one of this number")
    return parser


def _specs(options: argparse.Namespace, seed: int) -> bool:
    stack.install_types()
    numbers = range(options.specs) if options.only is None else [options.only]
    said = list(agreement.asked(nodes.connect(), seed, numbers))
    for number, each in zip(numbers, said, strict=True):
        if not each.agree:
            print(f"\nthey disagree about --only {number}:\n{each.told()}")
    disagreed, refused = sum(not each.agree for each in said), sum(bool(each.server) for each in said)
    print(f"{len(said)} specs, {len(said) - refused} accepted, {refused} refused, {disagreed} disagreements")
    return not disagreed


if __name__ == "__main__":
    sys.exit(main())
