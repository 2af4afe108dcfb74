"""What a plan for one accelerator takes of the CPU: with nothing compiled yet, and again.

    python benchmarks/plan_speed.py [--check]

Seconds are those of the process, user and system. `--check` fails above 15 s of the first plan and 4 s of the second.
Other work on the same cores makes both longer: two threads of one core take up to twice as long each.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile

PLAN = "plan --model Qwen/Qwen3-8B --accelerator h100 --ttft 500ms --tpot 30ms --rate 20 --json"
MOST_SECONDS = {"cold": 15.0, "warm": 4.0}


def run(folder: str) -> float:
    """Seconds of CPU of a plan whose compiled code is kept in this folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"NUMBA_CACHE_DIR": folder, "PYTHONPYCACHEPREFIX": folder}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "holdfast", *PLAN.split()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        for state, most in MOST_SECONDS.items():
            seconds = run(folder)
            missed += seconds > most
            print(f"{state}: {seconds:.1f} s of CPU (at most {most:.0f}); load {os.getloadavg()[0]:.1f}")
    return int(options.check and missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
