"""What the operator costs with many services: ticks, memory, queries, writes, and how fast it answers a load step.

    python -m e2e.cluster run -- python -m benchmarks.scale --services 1000 --replicas 4

Everything runs on this machine: control plane, fake nodes, Prometheus, the exporter and the operator share its cores.
Ends with 1 when a promise is not kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

from benchmarks.scale import bench, report
from benchmarks.scale.rig import Size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=4, help="pods per service")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tick", type=float, default=5.0, help="seconds")
    parser.add_argument("--scrape", type=float, default=15.0, help="seconds")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--logs", type=Path, help="keep logs in this folder")
    defaults = bench.Course()
    for part in fields(bench.Course):
        value = getattr(defaults, part.name)
        parser.add_argument(f"--{part.name.replace('_', '-')}", type=type(value), default=value)
    options = parser.parse_args()
    size = Size(options.services, options.replicas, options.seed, options.tick, options.scrape)
    course = bench.Course(**{part.name: getattr(options, part.name) for part in fields(bench.Course)})
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        outcome = bench.run(size, course, folder, lambda line: print(line, file=sys.stderr, flush=True))
    figures = report.to_json(outcome)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures), report.table(outcome), sep="\n\n")
    return 0 if all(bar.kept for bar in report.bars(outcome)) else 1


if __name__ == "__main__":
    sys.exit(main())
