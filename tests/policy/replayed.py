"""A process that decides again from a snapshot and memory in a file; a decision that reads Python's clocks fails.

`python -m tests.policy.replayed PICTURE ANSWER`; it says "ready" when all is loaded.
"""

from __future__ import annotations

import pickle
import sys
import time
from pathlib import Path

from holdfast.domain.snapshot import Snapshot
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from tests.policy.contest import RATE_RPS, SETTINGS
from tests.policy.fluid import FixedRates

CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
MODEL = FixedRates(dict.fromkeys(("a", "b", "c"), RATE_RPS))

Picture = tuple[Snapshot, Memory]


def no_clock() -> float:
    raise AssertionError("a decision reads the clock")


def main(picture: str, answer: str) -> None:
    snapshot, memory = pickle.loads(Path(picture).read_bytes())
    for clock in CLOCKS:
        setattr(time, clock, no_clock)
        setattr(time, f"{clock}_ns", no_clock)
    print("ready", flush=True)
    Path(answer).write_bytes(pickle.dumps(decide(snapshot, memory, SETTINGS, MODEL)))


if __name__ == "__main__":
    main(*sys.argv[1:])
