"""Pack aiconfigurator's vLLM step-time tables into the compact file the package ships.

    python scripts/make_step_tables.py --data ../shared/data/itertime

Reads `aiconfigurator_vllm_step_tables.csv.gz` and its `_meta.json`; writes gzipped JSON with the grids once and one
list of milliseconds per (model, system, tp) and kind. The same input gives the same bytes.
"""

import argparse
import csv
import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path

STEM = "aiconfigurator_vllm_step_tables"
PACKAGE_FILE = Path(__file__).parents[1] / "operator/holdfast/enginemodel/data/step_tables.json.gz"

Points = dict[tuple[int, int], float]
TableKey = tuple[str, str, int]


def read_points(path: Path) -> dict[TableKey, dict[str, Points]]:
    """Milliseconds by (model, system, tp), kind and grid point."""
    points: dict[TableKey, dict[str, Points]] = defaultdict(lambda: defaultdict(dict))
    with gzip.open(path, "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            key = (row["model"], row["system"], int(row["tp"]))
            points[key][row["kind"]][int(row["x"]), int(row["y"])] = float(row["ms"])
    return points


def common_grids(points: dict[TableKey, dict[str, Points]]) -> dict[str, dict[str, list[int]]]:
    """The x and y values of each kind; refuses input whose tables differ in their grids or have holes."""
    grids: dict[str, dict[str, list[int]]] = {}
    for key, kinds in points.items():
        for kind, values in kinds.items():
            xs, ys = sorted({x for x, _ in values}), sorted({y for _, y in values})
            if len(values) != len(xs) * len(ys) or grids.setdefault(kind, {"x": xs, "y": ys}) != {"x": xs, "y": ys}:
                raise ValueError(f"{key} {kind}: its grid differs from the other tables'")
    return grids


def packed(data: Path) -> bytes:
    """The package file's bytes from the folder with the CSV and its meta data."""
    points = read_points(data / f"{STEM}.csv.gz")
    grids = common_grids(points)
    tables = []
    for entry in json.loads((data / f"{STEM}_meta.json").read_text()):
        kinds = points.get((entry["model"], entry["system"], entry["tp"]))
        if not kinds:
            continue
        tables.append(
            {
                "model": entry["model"],
                "system": entry["system"],
                "tp": entry["tp"],
                "database": entry["vllm_db"],
                "kv_bytes_per_token": entry["kv_bytes_per_token_per_gpu"],
                "weights_bytes": entry["weights_bytes_per_gpu"],
                "ms": {kind: [values[point] for point in sorted(values)] for kind, values in sorted(kinds.items())},
            }
        )
    content = {"generator": "aiconfigurator 0.12.0", "grids": grids, "tables": tables}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/itertime"), help="folder with the tables")
    parser.add_argument("--out", type=Path, default=PACKAGE_FILE)
    arguments = parser.parse_args()
    if not (arguments.data / f"{STEM}.csv.gz").is_file():
        sys.stderr.write(f"--data {arguments.data}: no {STEM}.csv.gz there; name the folder that holds it\n")
        return 2
    content = packed(arguments.data)
    arguments.out.write_bytes(content)
    sys.stdout.write(f"{arguments.out}: {len(content)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
