"""How long one tick of acting takes while next to nothing is to be written: N services under constant, noisy load.

Decisions come from the policy, as in decide_speed.py; the API server is a dict, so that only the operator is timed.

.venv/bin/python benchmarks/act_speed.py [--services 1000] [--ticks 24] [--settling 60] [--profile]
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import dataclasses
import pstats
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.decide_speed import SCRAPE_SECONDS, TICK_SECONDS, Fleet
from holdfast.act.resources import _KINDS
from holdfast.api.llmservice import LLMService
from holdfast.control.writes.actuator import Actuator
from holdfast.domain.cluster import Placement, Workload
from holdfast.domain.decision import Action, Decision
from holdfast.domain.engine import EngineState, PluginMode
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import LatencyQuantiles, Traffic
from holdfast.domain.snapshot import ServiceSnapshot, Snapshot, Timing
from holdfast.observe.objects.cluster import ObservedDeployment, ServiceParts
from holdfast.observe.objects.engines import EnginePod, limits_from_config_map
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from holdfast.render import RenderSettings
from holdfast.rendered import context
from holdfast.rendered.live import Live
from holdfast.rendered.names import SERVICE_LABEL, limits_name
from tests.builders import NOW, node
from tests.control.parts import body, decision, parts
from tests.fakes import FakeApi

SLOW_PERIOD_SECONDS = 60.0
AT_ONCE = 100
KINDS = {plural: kind for kind, (_, plural) in _KINDS.items() if kind != "Event"}


class Quiet:
    """Metrics and telemetry that nobody reads."""

    async def running_by_pod(self, keys: Any, now: float) -> Mapping[ServiceKey, Mapping[str, float]]:
        return {}

    def pictured(self, *_: Any) -> None: ...

    def decided(self, decision: Decision) -> None: ...

    def error(self, phase: str) -> None:
        raise RuntimeError(phase)


class Cluster:
    """What the watches show: objects of an API server in memory, and the pods and numbers of a fleet.

    Each service has as many replicas as scaling.min says, which is more than it needs.
    """

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.replicas = len(fleet.pods[0])
        sizes = {"min": self.replicas, "max": 2 * self.replicas}
        self.fleet, self.api, self.chance = fleet, FakeApi(), random.Random(seed)
        self.names = [builder.spec.key.name for builder in fleet.names]
        self.nodes = tuple(node(f"n{index}", 64) for index in range(len(self.names) // 8 + 1))
        for name in self.names:
            self.api.put_object(self._path(name), body(name, scaling=sizes))
        self.parts = [parts(LLMService.parse(body(name, scaling=sizes))) for name in self.names]
        self.quantiles = [self._quantiles() for _ in self.names]

    async def create(self, acting: Actuator) -> None:
        """Create the objects of every service, some services at once."""
        for first in range(0, len(self.parts), AT_ONCE):
            some = self.parts[first : first + AT_ONCE]
            new = [decision(part, Action.CREATE, h100=self.replicas) for part in some]
            for _ in range(3):  # what one pass has no time for, the next one makes
                await acting.act(some, new, (), self.nodes, NOW - 3600.0)
        found: dict[str, list[tuple[str, dict[str, Any]]]] = {name: [] for name in self.names}
        for path, shown in self.api.objects.items():
            if kind := KINDS.get(path.split("/")[-2]):
                found[shown["metadata"]["labels"][SERVICE_LABEL]].append((kind, shown))
        self.parts = [self._created(part, found[part.spec.key.name]) for part in self.parts]

    def show(self) -> None:
        """Take up the statuses that have been written, and the pods of the fleet."""
        written = {path for _, path, _, _ in self.api.requests}
        self.api.requests.clear()
        for index, part in enumerate(self.parts):
            path = self._path(part.spec.key.name)
            if f"{path}/status" in written:
                part = dataclasses.replace(part, service=LLMService.parse(self.api.objects[path]))
            self.parts[index] = dataclasses.replace(part, replicas=self.fleet.pods[index])

    def traffic(self, passed: float) -> dict[ServiceKey, Traffic]:
        """What Prometheus shows; quantiles are read once a minute, each at its own time."""
        self.fleet.snapshot(passed)
        seen = {}
        for index, (part, shown) in enumerate(zip(self.parts, self.fleet.shown, strict=True)):
            if (passed + 7.0 * index) % SLOW_PERIOD_SECONDS < TICK_SECONDS:
                self.quantiles[index] = self._quantiles()
            ttft, tpot = self.quantiles[index]
            plugins = tuple(_state(engine) for engine in part.engines)
            seen[part.spec.key] = dataclasses.replace(shown, ttft=ttft, tpot=tpot, plugins=plugins)
        return seen

    def _quantiles(self) -> tuple[LatencyQuantiles, LatencyQuantiles]:
        about = [self.chance.gauss(1.0, 0.02) for _ in range(6)]
        ttft = LatencyQuantiles(0.11 * about[0], 0.23 * about[1], 0.33 * about[2])
        return ttft, LatencyQuantiles(0.017 * about[3], 0.022 * about[4], 0.025 * about[5])

    def _created(self, part: ServiceParts, found: Sequence[tuple[str, dict[str, Any]]]) -> ServiceParts:
        name = part.spec.key.name
        live = tuple(Live.of(kind, shown) for kind, shown in found)
        rendered = next(context.Deployed.read(shown) for kind, shown in found if kind == "Deployment")
        deployed = ObservedDeployment(
            Placement("h100", self.replicas, workload=Workload(f"{name}-h100")), rendered=rendered
        )
        maps = [shown for kind, shown in found if (kind, shown["metadata"]["name"]) == ("ConfigMap", limits_name(name))]
        limits = next((told for told in map(limits_from_config_map, maps) if told), ())
        made = dataclasses.replace(
            part, live=live, watched=frozenset(KINDS.values()), deployed=(deployed,), limits=limits
        )
        told = dict(limits).get("h100")
        engines = (
            tuple(EnginePod(pod.name, f"uid-{pod.name}", "h100", told) for pod in self.fleet.pods[0]) if told else ()
        )
        return dataclasses.replace(made, engines=engines)

    def _path(self, name: str) -> str:
        return f"/apis/holdfast.dev/v1alpha1/namespaces/prod/llmservices/{name}"


def _state(engine: EnginePod) -> EngineState:
    version = engine.told.version if engine.told else None
    return EngineState(engine.pod, PluginMode.ACTIVE, version, active_sequences=128.0, tokens_per_step=2048.0)


async def measure(options: argparse.Namespace, profile: cProfile.Profile) -> tuple[list[float], int]:
    """Return CPU seconds of each tick after sizes have come to rest, and the writes made in them."""
    cluster = Cluster(Fleet(options.services, options.seed, different=False), options.seed)
    settings, quiet = RenderSettings({"launcher.py": ""}, b"plugin"), Quiet()
    acting = Actuator(cluster.api, quiet, quiet, settings, lambda: True)  # type: ignore[arg-type]
    await cluster.create(acting)
    memory, seconds, writes = Memory(), [], 0
    for tick in range(options.settling + options.ticks):
        cluster.show()
        passed, measured = tick * TICK_SECONDS, tick >= options.settling
        traffic, now = cluster.traffic(passed), NOW + passed
        pictured = tuple(
            ServiceSnapshot(part.spec, traffic[part.spec.key], part.replicas, part.placements) for part in cluster.parts
        )
        decisions, memory = decide(Snapshot(now, pictured, cluster.nodes, Timing(TICK_SECONDS, SCRAPE_SECONDS)), memory)
        if options.profile and measured:
            profile.enable()
        began = time.process_time()
        await acting.act(cluster.parts, decisions, (), cluster.nodes, now, traffic)
        profile.disable()
        seconds += [time.process_time() - began] if measured else []
        await asyncio.sleep(0.0)
        writes += len(cluster.api.writes()) if measured else 0
    return seconds, writes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--ticks", type=int, default=24)
    parser.add_argument("--settling", type=int, default=60, help="ticks before those")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    options, profile = parser.parse_args(), cProfile.Profile()
    seconds, writes = asyncio.run(measure(options, profile))
    print(f"{options.services} services at constant load, {options.ticks} ticks, {writes} writes", end=", ")
    print(f"CPU milliseconds per tick: median {statistics.median(seconds) * 1e3:.0f}   worst {max(seconds) * 1e3:.0f}")
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
