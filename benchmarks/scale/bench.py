"""The course of the benchmark: set up, start anew, settle, constant load, load steps, varying load."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.scale import fleet, rig
from benchmarks.scale.watch import Seen, Watcher, Write
from e2e.cluster.nodes import start_kwok


@dataclass(frozen=True, slots=True)
class Course:
    """How long each part takes, in seconds, and how many steps there are."""

    most_settle_seconds: float = 300.0
    quiet_seconds: float = 65.0  # longer than the minute in which numbers of a status may wait to be written
    constant_seconds: float = 120.0
    varying_seconds: float = 180.0
    steps: int = 12
    gpus_per_node: int = 8
    most_setup_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Step:
    """One load step: when Prometheus scraped it first, and when the operator asked for another size (None: never)."""

    service: str
    visible_at: float
    scaled_at: float | None

    @property
    def seconds(self) -> float | None:
        return None if self.scaled_at is None else self.scaled_at - self.visible_at


@dataclass(slots=True)
class Outcome:
    """All that was measured."""

    size: rig.Size
    seconds: dict[str, float] = field(default_factory=dict)
    constant: Seen = field(default_factory=lambda: Seen(0.0))
    varying: Seen = field(default_factory=lambda: Seen(0.0))
    stepping: Seen = field(default_factory=lambda: Seen(0.0))
    steps: list[Step] = field(default_factory=list)
    creating_memory_mib: float = 0.0
    """Most resident memory of the operator that created everything; another one is measured from then on."""
    most_memory_mib: float = 0.0
    settled: bool = False
    changed_at_constant_load: Counter[str] = field(default_factory=Counter)
    """How often each field of a status differs after the constant part from before it."""


def run(size: rig.Size, course: Course, folder: Path, say: Callable[[str], None]) -> Outcome:
    """Play the whole course in the cluster that KUBECONFIG names; logs stay in the folder."""
    outcome = Outcome(size)
    services = fleet.members(size.services, size.replicas, size.seed)
    with started(size, services, course, folder, outcome, say) as running:
        watcher = Watcher(running, size.tick_seconds)
        with _timed(outcome, "restart", say):
            _wait_for_a_tick(watcher, course.most_setup_seconds)
        with _timed(outcome, "settle", say):
            outcome.settled = _settle(watcher, course)
        with _timed(outcome, "constant", say):
            before = fleet.statuses()
            outcome.constant = watcher.during(lambda: time.sleep(course.constant_seconds))
            after = fleet.statuses()
            paths = (path for name in before for path in fleet.changed_fields(before[name], after.get(name, {})))
            outcome.changed_at_constant_load = Counter(paths)
        with _timed(outcome, "steps", say):
            outcome.stepping = watcher.during(lambda: _step(running, services, size, course))
            outcome.steps = _answers(running, outcome.stepping)
        rig.post(f"{running.metrics.exporter}/load?varying=1")
        with _timed(outcome, "varying", say):
            # What follows from the change to varying load itself is over after a minute.
            watcher.during(lambda: time.sleep(min(60.0, course.varying_seconds / 2)))
            outcome.varying = watcher.during(lambda: time.sleep(course.varying_seconds))
        outcome.most_memory_mib = rig.memory_mib(running.operator_pid, "VmHWM")
    return outcome


@contextmanager
def started(
    size: rig.Size,
    services: tuple[fleet.Member, ...],
    course: Course,
    folder: Path,
    outcome: Outcome,
    say: Callable[[str], None],
) -> Iterator[rig.Rig]:
    """Nodes, services, Prometheus, operator; goes on once every pod is Ready."""
    wanted = size.services * size.replicas
    with start_kwok(folder):
        with _timed(outcome, "nodes", say):
            fleet.add_nodes(wanted, course.gpus_per_node)
        with _timed(outcome, "services", say):
            kubeconfig = rig.operator_account(folder)
            fleet.declare(services)
        with rig.scraping(size, folder) as metrics:
            with rig.operating(size, metrics, kubeconfig, folder / "creator.log") as creator:
                with _timed(outcome, "pods", say):
                    _wait_for_pods(creator, wanted, course.most_setup_seconds)
                outcome.creating_memory_mib = rig.memory_mib(creator.operator_pid, "VmHWM")
            with rig.operating(size, metrics, kubeconfig, folder / "operator.log") as running:
                yield running


def _wait_for_pods(running: rig.Rig, wanted: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (ready := json.loads(rig.get(f"{running.metrics.exporter}/state"))["pods"]) < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{ready} of {wanted} pods are Ready after {seconds:.0f} s")
        time.sleep(1.0)


def _wait_for_a_tick(watcher: Watcher, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not watcher.ticks():
        time.sleep(0.5)
        if time.monotonic() > deadline:
            raise TimeoutError(f"no decision {seconds:.0f} s after a restart")


def _settle(watcher: Watcher, course: Course) -> bool:
    """Wait until the operator has written nothing for a while; False when that did not happen in time."""
    deadline = time.monotonic() + course.most_settle_seconds
    quiet_since = time.monotonic()
    while time.monotonic() < deadline:
        if time.monotonic() - quiet_since >= course.quiet_seconds:
            return True
        if watcher.during(lambda: time.sleep(2.0)).written():
            quiet_since = time.monotonic()
    return False


def _step(running: rig.Rig, services: tuple[fleet.Member, ...], size: rig.Size, course: Course) -> None:
    """Step one service after the other, at random moments; then wait for the answer to the last one."""
    chance = random.Random(size.seed)
    for member in chance.sample(services, min(course.steps, len(services))):
        rig.post(f"{running.metrics.exporter}/step?service={member.name}")
        time.sleep(chance.uniform(0.5, 1.5) * size.tick_seconds)
    time.sleep(size.scrape_seconds + 2 * size.tick_seconds + 2.0)


def _answers(running: rig.Rig, seen: Seen) -> list[Step]:
    stepped: dict[str, float] = json.loads(rig.get(f"{running.metrics.exporter}/state"))["stepped"]
    return [Step(name, at, _first_resize(seen.writes, name, at)) for name, at in sorted(stepped.items())]


def _first_resize(writes: list[Write], service: str, after: float) -> float | None:
    name = f"{service}-{fleet.ACCELERATOR}"
    resized = (write.at for write in writes if write.resource == "deployments/scale" and write.name == name)
    return next((at for at in resized if at >= after), None)


@contextmanager
def _timed(outcome: Outcome, what: str, say: Callable[[str], None]) -> Iterator[None]:
    started_at = time.monotonic()
    yield
    outcome.seconds[what] = time.monotonic() - started_at
    say(f"{what}: {outcome.seconds[what]:.0f} s")
