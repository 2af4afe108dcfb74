"""The same snapshot and memory give the same decision, however slow the machine and in whatever order sets come."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.domain.decision import Decision
from holdfast.domain.service import AcceleratorOption, ServiceKey
from holdfast.policy.decide import decide
from holdfast.policy.memory import FleetContext, Memory
from tests.builders import NOW, ServiceBuilder, accelerator, service
from tests.policy.contest import RATE_RPS, SETTINGS, Contest
from tests.policy.replayed import MODEL, Picture

SERVICES = 80
RUN_SECONDS, STOP_SECONDS = 0.003, 0.05
"""How long a slowed process runs and stands still, in turn."""

Made = tuple[tuple[Decision, ...], Memory]


def on(kind: str, gpus: int) -> AcceleratorOption:
    return accelerator(kind, node_selector=(("kind", kind),), gpus_per_replica=gpus)


def settled(draw: random.Random, name: str) -> tuple[ServiceBuilder, float, int]:
    """A service whose replicas carry its load, its requests per second and its replicas; it may run elsewhere."""
    size, others = draw.randint(2, 4), draw.sample(["b", "c"], 2)
    options = [on(kind, draw.choice([1, 2])) for kind in ("a", *others)]
    built = service(name).with_accelerators(*options).with_priority(draw.choice([0, 2, 4]))
    return built, draw.uniform(0.55, 0.7) * size * RATE_RPS, size


class Pictured(Contest):
    """A contest that keeps the snapshot and the memory from which the program moves services."""

    def picture(self) -> Picture:
        while self.now < NOW + 600.0:
            before, contexts = (self.snapshot(), self.memory), dict[ServiceKey, FleetContext]()
            decide(*before, SETTINGS, MODEL, recorded=contexts.__setitem__)
            if any(context.allocation and context.allocation.moves_to for context in contexts.values()):
                return before
            self.run(5.0)
        raise AssertionError("the program moves nobody")


@pytest.fixture(scope="module")
def picture() -> Picture:
    """Services that need nothing more, and urgent ones that come and run on the same accelerator only."""
    draw = random.Random(2)
    services = {name: settled(draw, name) for name in (f"s{index:02}" for index in range(SERVICES))}
    held = sum(builder.spec.accelerators[0].gpus_per_replica * size for builder, _, size in services.values())
    fleet = Pictured({"a": held + 4, "b": held // 2, "c": held // 2}, services)
    fleet.run(60.0)
    for index in range(10):
        fleet.join(f"u{index}", service(f"u{index}").with_priority(10).with_accelerators(on("a", 1)), 12.0)
    return fleet.picture()


def replayed(picture: Picture, folder: Path, hash_seed: int, is_slow: bool) -> Made:
    """What another process decides; a slow one stands still most of the time, so that its clock runs ahead."""
    (folder / "picture").write_bytes(pickle.dumps(picture))
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.policy.replayed", str(folder / "picture"), str(folder / "answer")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        while is_slow and process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            time.sleep(STOP_SECONDS)
            process.send_signal(signal.SIGCONT)
            time.sleep(RUN_SECONDS)
    assert process.returncode == 0
    made: Made = pickle.loads((folder / "answer").read_bytes())
    return made


@pytest.mark.parametrize(("hash_seed", "is_slow"), [(1, False), (2, True)])
def test_a_replay_decides_the_same(picture: Picture, tmp_path: Path, hash_seed: int, is_slow: bool) -> None:
    assert replayed(picture, tmp_path, hash_seed, is_slow) == decide(*picture, SETTINGS, MODEL)
