"""What the operator alone costs with thousands of services, and how soon it decides on each after a restart.

    python benchmarks/operator_alone.py [--services 5000] [--replicas 4] [--seed 0]

A first process creates all objects and lets the operator come to rest; what the watches would show then is handed to a
second process, which is the restarted operator: its own code from Prometheus' JSON to the last write, with the answers
of tick_speed.py, an hour of history among them, and an API server that accepts everything. Its clock is virtual, with a
tick every 5 s; seconds after the restart count a tick that takes longer as what it took. Listing all objects through
kopf is not measured. Engines report no plugin, so FastLoopActive of every service changes twice within some minutes of
the restart: most status writes and all Events of that part are due to this.

Ends with 1 where a bar is missed. RSS is that of a process which has imported the operator, and what this one grew by
without the objects of the API server. CPU seconds are those of the process, all threads, without the stand-ins; wall
times are only worth something on an idle machine, so the load average is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import dataclasses
import json
import math
import multiprocessing
import os
import pickle
import pstats
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.act_speed import Cluster
from benchmarks.decide_speed import SCRAPE_SECONDS, TICK_SECONDS
from benchmarks.scale.report import machine, percentile
from benchmarks.scale.rig import memory_mib
from benchmarks.tick_speed import Answers, Even, Inline, Shown, Times
from holdfast.control.tick.loop import Loop
from holdfast.control.writes.actuator import Actuator
from holdfast.domain.snapshot import Timing
from holdfast.observe.series.client import PrometheusAddress
from holdfast.observe.signals.prometheus import PrometheusSource
from holdfast.policy.settings import PolicySettings
from holdfast.render import RenderSettings
from holdfast.runtime import memory
from tests.builders import NOW

TICK_P99_SECONDS, CPU_SECONDS, RSS_MIB, DECIDED_SECONDS = 2.0, 2.0, 400.0, 60.0


class Accepting:
    """An API server in which every object is as it was prepared, and which keeps only the statuses that are written.

    Objects are compressed: their memory is not the operator's.
    """

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self._objects = objects
        self.statuses: dict[str, Mapping[str, Any]] = {}
        self.writes: Counter[str] = Counter()

    async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """Answer with the object, whatever is to be written."""
        if method != "GET":
            plural, name = path.split("/")[-2:]
            self.writes["status" if name == "status" else plural] += 1
        if path.endswith("/status"):
            self.statuses[path.split("/")[-2]] = more["body"]["status"]
            return dict(more["body"])
        if path in self._objects:
            found: dict[str, Any] = json.loads(zlib.decompress(self._objects[path]))
            return found
        return {"metadata": {"resourceVersion": "1"}, **(more.get("body") or {})}

    def objects_written(self) -> int:
        """How many writes were not of a status."""
        return self.writes.total() - self.writes["status"]


@dataclasses.dataclass
class Prepared:
    """What the watches show, and what the API server has."""

    cluster: Cluster
    objects: Mapping[str, bytes]


@dataclasses.dataclass
class Tick:
    """One tick: wall seconds, CPU seconds until its end and until the next one, and queries."""

    wall: float
    cpu: float
    cpu_in_all: float
    queries: int


class Operator:
    """The operator's parts around a cluster, ticking by a virtual clock."""

    def __init__(self, cluster: Cluster, api: Any, options: argparse.Namespace, now: float) -> None:
        self.cluster, self.api, self.now, self.times = cluster, api, now, Times()
        self.source = PrometheusSource(PrometheusAddress("http://prometheus"), TICK_SECONDS, SCRAPE_SECONDS)
        if options.profile:
            self.source._executor = Inline()
            asyncio.get_running_loop().set_default_executor(Inline())
        self.answers = Answers(cluster, remembers=True)
        self.source._client._session.mount("http://prometheus", self.answers)
        rendering = RenderSettings({"launcher.py": ""}, b"plugin")
        self.acting = Actuator(api, self.source, self.times, rendering, lambda: True)  # type: ignore[arg-type]
        self.loop = Loop(
            cluster=Shown(cluster),  # type: ignore[arg-type]
            metrics=self.source,
            actuator=self.acting,
            telemetry=self.times,
            timing=Timing(TICK_SECONDS, SCRAPE_SECONDS),
            policy_settings=PolicySettings(),
            monotonic=lambda: self.now,
            wall=lambda: self.now,
        )
        if options.profile:
            self.loop._thinking = Inline()

    def undecided(self) -> int:
        """Services without a decision."""
        known = self.loop._memory.services
        return sum(part.spec.key not in known or known[part.spec.key].last is None for part in self.cluster.parts)

    def unrestored(self) -> int:
        """Services whose history no decision has used yet."""
        return sum(not each.learned for each in self.loop._restore._restores.values())

    async def tick(self, profile: cProfile.Profile | None = None) -> Tick:
        """Make one tick and everything that it starts."""
        self.cluster.fleet.snapshot(self.now - NOW)
        self.answers.seconds, self.answers.asked = 0.0, 0
        started, cpu = time.perf_counter(), time.process_time()
        if profile:
            profile.enable()
        await self.loop.run_once()
        wall, in_tick = time.perf_counter() - started, time.process_time() - cpu - self.answers.seconds
        await self.source.settle()
        if self.loop._restore._reading is not None:
            await self.loop._restore._reading
        await self.acting._teller._status.settle()
        if profile:
            profile.disable()
        whole = time.process_time() - cpu - self.answers.seconds
        self.now += TICK_SECONDS
        return Tick(wall, in_tick, whole, self.answers.asked)


async def prepared(options: argparse.Namespace) -> Prepared:
    """Create everything, and let an operator come to rest."""
    cluster = Cluster(Even(options.services, options.seed, different=False, each=options.replicas), options.seed)
    operator = Operator(cluster, cluster.api, argparse.Namespace(profile=False), NOW)
    await cluster.create(operator.acting)
    for tick in range(options.settling):
        cluster.show()
        await operator.tick()
        writes = [path for _, path in cluster.api.writes() if not path.endswith("/status")]
        print(f"prepared: tick {tick + 1}, {len(writes)} objects written", file=sys.stderr)
        if not writes and not operator.undecided() and not operator.unrestored():
            break
    cluster.show()
    await operator.source.close()
    objects = {path: zlib.compress(json.dumps(shown).encode()) for path, shown in cluster.api.objects.items()}
    cluster.api.objects.clear()
    return Prepared(cluster, objects)


def prepare(options: argparse.Namespace, path: str) -> None:
    """Do so in a process of its own, and leave it in a file."""
    Path(path).write_bytes(pickle.dumps(asyncio.run(prepared(options))))


def show(cluster: Cluster, api: Accepting) -> None:
    """Show the statuses that were written since the last tick."""
    for index, part in enumerate(cluster.parts):
        status = api.statuses.pop(part.spec.key.name, None)
        if status is not None:
            shown = part.service.model_copy(update={"status": status})
            cluster.parts[index] = dataclasses.replace(part, service=shown)


async def heartbeat(gaps: list[float]) -> None:
    """Note by how much the event loop is late: the Lease is renewed on it."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(0.02)
        gaps.append(time.perf_counter() - before - 0.02)


@dataclasses.dataclass
class Measured:
    """The course after a restart: seconds until all services are decided on, and restored; the ticks at rest."""

    decided_seconds: float
    restored_seconds: float
    restart: Sequence[Tick]
    rest: Sequence[Tick]
    writes: Mapping[str, Counter[str]]
    most_mib: float  # resident, at the end of any tick
    blocked_seconds: float
    at_rest: bool  # before the ticks at rest


async def measure(options: argparse.Namespace, made: Prepared, profile: cProfile.Profile) -> Measured:
    """Start an operator on what is there, and let it tick."""
    cluster, api, gaps = made.cluster, Accepting(made.objects), list[float]()
    operator, began = Operator(cluster, api, options, NOW + 86_400.0), time.monotonic()
    beating = asyncio.create_task(heartbeat(gaps))
    decided, restored, most_mib, passed, at_rest = math.nan, math.nan, 0.0, 0.0, False
    restart, rest = list[Tick](), list[Tick]()

    async def tick(course: list[Tick], name: str) -> None:
        nonlocal most_mib
        course.append(await operator.tick(profile if options.profile == name else None))
        show(cluster, api)
        most_mib = max(memory_mib(os.getpid()), most_mib)
        print(f"{name}: tick {len(course)}, {course[-1].cpu_in_all:.2f} s of CPU", file=sys.stderr)

    def has_time(share: float) -> bool:
        return time.monotonic() - began < share * options.most_seconds

    while (len(restart) < options.least_ticks or not at_rest) and has_time(0.5):
        written = api.objects_written()
        await tick(restart, "restart")
        if math.isnan(decided) and not operator.undecided():
            decided = passed + restart[-1].wall
        if math.isnan(restored) and not operator.unrestored():
            restored = passed + restart[-1].wall
        at_rest = not math.isnan(restored) and api.objects_written() == written
        passed += max(TICK_SECONDS, restart[-1].wall)
        if len(restart) == 3:
            memory.settle()  # as the operator does, 15 s after its start
    of_restart = Counter(api.writes)
    while not rest or (len(rest) < options.ticks and has_time(1.0)):
        await tick(rest, "rest")
    beating.cancel()
    await operator.source.close()
    writes = {"restart": of_restart, "rest": api.writes - of_restart}
    return Measured(decided, restored, restart, rest, writes, most_mib, max(gaps), at_rest)


def lines(options: argparse.Namespace, seen: Measured) -> Iterator[str]:
    """What a person reads."""
    pods = options.services * options.replicas
    yield f"{options.services} services, {pods} pods, seed {options.seed}; {machine()}"
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    yield f"load average {load}: wall times count only on an idle machine"
    for name, ticks in (("restart", seen.restart), ("rest", seen.rest)):
        cpu, wall = [tick.cpu_in_all for tick in ticks], [tick.wall for tick in ticks]
        yield (
            f"{name:8} {len(ticks):3} ticks  CPU in a tick p50 {percentile([t.cpu for t in ticks], 0.5):.2f} s, "
            f"p99 {percentile([t.cpu for t in ticks], 0.99):.2f} s; in all mean {sum(cpu) / len(cpu):.2f} s, "
            f"worst {max(cpu):.2f} s; wall p50 {percentile(wall, 0.5):.2f} s, p99 {percentile(wall, 0.99):.2f} s; "
            f"{max(t.queries for t in ticks)} queries at most; writes {dict(seen.writes[name])}"
        )
    if not seen.at_rest:
        yield "NOT at rest: the time was over while objects were still written or histories read"
    yield f"every history was learned from {seen.restored_seconds:.0f} s after the restart"
    yield f"the event loop was blocked for {seen.blocked_seconds:.2f} s at most (wall; the Lease bears 8 s)"


def rss_mib(seen: Measured, made: Prepared, imported_mib: float) -> float:
    """Resident memory that the operator alone would have; this process had `imported_mib` before it began."""
    script = "import holdfast.runtime.wiring; print(open('/proc/self/status').read())"
    told = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    alone = next(int(line.split()[1]) / 1024.0 for line in told.splitlines() if line.startswith("VmRSS:"))
    stored = sum(sys.getsizeof(path) + sys.getsizeof(body) for path, body in made.objects.items()) / 2.0**20
    return alone + seen.most_mib - imported_mib - stored


def bars(seen: Measured, own_mib: float) -> list[tuple[str, float, float]]:
    """Each promise, what was measured, and the most that keeps it."""
    return [
        ("tick p99, s", percentile([tick.wall for tick in seen.rest], 0.99), TICK_P99_SECONDS),
        ("CPU a tick, s", sum(tick.cpu_in_all for tick in seen.rest) / len(seen.rest), CPU_SECONDS),
        ("RSS, MiB", own_mib, RSS_MIB),
        ("first decision of every service after a restart, s", seen.decided_seconds, DECIDED_SECONDS),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=5000)
    parser.add_argument("--replicas", type=int, default=4, help="of each service")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settling", type=int, default=120, help="ticks before the restart, at most")
    parser.add_argument("--ticks", type=int, default=36, help="ticks at rest")
    parser.add_argument("--least-ticks", type=int, default=24, help="ticks after the restart until it is at rest")
    parser.add_argument("--most-seconds", type=float, default=math.inf, help="of the restarted operator, half at rest")
    parser.add_argument("--prepared", help="a file that an earlier run with the same options left; else it is made")
    parser.add_argument("--profile", choices=("restart", "rest"), help="print where the time goes")
    options, profile = parser.parse_args(), cProfile.Profile()
    if "PYTHONHASHSEED" not in os.environ:  # the objects that one process hands to the other hold hashes
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    memory.frugal_allocation()
    imported_mib = memory_mib(os.getpid())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(options.prepared or f"{folder}/cluster")
        if not path.exists():
            making = multiprocessing.get_context("spawn").Process(target=prepare, args=(options, str(path)))
            making.start()
            making.join()
        with path.open("rb") as file:
            made = pickle.load(file)
    seen = asyncio.run(measure(options, made, profile))
    print("\n".join(lines(options, seen)))
    judged = bars(seen, rss_mib(seen, made, imported_mib))
    for promise, measured, most in judged:
        print(f"{promise:52} {measured:8.2f}  <= {most:g}  {'kept' if measured <= most else 'MISSED'}")
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    return int(not all(measured <= most for _, measured, most in judged))


if __name__ == "__main__":
    raise SystemExit(main())
