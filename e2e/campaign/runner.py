"""Plays fault schedules against services under a constant load, and judges each by what was seen meanwhile."""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from e2e import stack
from e2e.campaign import faults
from e2e.campaign.faults import NAME, World
from e2e.campaign.lies import Liar
from e2e.campaign.recorder import Sizes, Writes
from e2e.campaign.schedule import Schedule, Scope
from e2e.campaign.timeline import Bounds, Harm, Timeline
from e2e.cluster import nodes
from e2e.cluster.apiclient import ApiError
from e2e.cluster.layout import NODE_ADDRESS
from e2e.kubectl import Kubectl, condition
from e2e.load.steady import SteadyLoad
from e2e.patience import patient

BOUNDS = Bounds(least=1, needed=2, most=4)
RATE_RPS = 1.5
"""Half as much again as one replica carries."""
_SCRAPE = "5s"
_SETTLE_SECONDS, _RECOVERY_SECONDS = 180.0, 60.0
Json = dict[str, Any]


@dataclass(slots=True)
class Seat:
    """A service under load in a namespace of its own."""

    namespace: str
    load: SteadyLoad
    harms: list[Harm] = field(default_factory=list)
    judged: int = 0
    """Requests that were judged with earlier schedules."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A schedule as it was played."""

    schedule: Schedule
    seen: Timeline


class Campaign:
    """Services, their load, and what notes all that happens."""

    def __init__(self, world: World, seats: Sequence[Seat], sizes: Sizes, writes: Writes) -> None:
        self._world, self._seats, self._sizes, self._writes = world, seats, sizes, writes
        self._edits = 0
        self._lock = threading.Lock()

    def play(self, together: Sequence[Schedule]) -> list[Outcome]:
        """Play schedules at the same time: of single services one on each, or one that all of them see."""
        faults.forget_restarts(self._world.api)
        self.settle()
        self._writes.new()
        with ThreadPoolExecutor(len(self._seats)) as threads:
            if together[0].scope is Scope.CLUSTER:
                played = [self._play(together[0], self._seats)]
            else:
                pairs = zip(together, self._seats, strict=False)
                played = list(threads.map(lambda pair: self._play(pair[0], [pair[1]]), pairs))
        first, *others = played
        return [replace(first, seen=replace(first.seen, writes=self._writes.new())), *others]

    def settle(self) -> None:
        """Return once each service is whole and has the size that its load needs."""
        if not self._are_whole(self._seats, {seat.namespace: 0 for seat in self._seats}, _SETTLE_SECONDS):
            raise TimeoutError("the services did not come to the size that their load needs")

    def _play(self, schedule: Schedule, seats: Sequence[Seat]) -> Outcome:
        started_at = time.time()
        random = Random(f"{schedule.seed}/{schedule.number}/targets")
        acts = [(each, faults.prepared(each.kind, self._world, seats[0].namespace, random)) for each in schedule.faults]
        seats[0].harms += faults.bring_about(acts)
        ended = time.monotonic()
        edits = {seat.namespace: self._edit(seat) for seat in seats}
        are_whole = self._are_whole(seats, edits, _RECOVERY_SECONDS)
        recovered_seconds = time.monotonic() - ended if are_whole else None
        return Outcome(schedule, self._seen(seats, started_at, recovered_seconds))

    def _edit(self, seat: Seat) -> int:
        """Change the spec, so that the next status shows whether the operator reads, decides and writes again."""
        with self._lock:
            self._edits += 1
            priority = self._edits
        changed = faults.insist(lambda: self._world.api.patch(_path(seat), {"spec": {"priority": priority}}))
        return int(changed["metadata"]["generation"])

    def _are_whole(self, seats: Sequence[Seat], generations: dict[str, int], seconds: float) -> bool:
        waiting = {seat.namespace: seat for seat in seats}
        deadline = time.monotonic() + patient(seconds)
        while waiting and time.monotonic() < deadline:
            for namespace, seat in list(waiting.items()):
                with contextlib.suppress(ApiError, OSError):
                    if is_whole(self._world.api.get(_path(seat)), generations[namespace]):
                        del waiting[namespace]
            time.sleep(0.25)
        return not waiting

    def _seen(self, seats: Sequence[Seat], since: float, recovered_seconds: float | None) -> Timeline:
        records, harms = [], []
        for seat in seats:
            finished = list(seat.load.records)
            records += finished[seat.judged :]
            seat.judged = len(finished)
            harms += seat.harms
        sizes = [size for seat in seats for size in self._sizes.of(seat.namespace, since)]
        return Timeline(BOUNDS, sizes, records, harms, (), recovered_seconds)


def is_whole(service: Json, generation: int) -> bool:
    """Whether the operator has seen this generation, has metrics, and all replicas that the load needs serve."""
    status = service.get("status", {})
    replicas = status.get("replicas", {})
    return (
        status.get("observedGeneration", -1) >= generation
        and all(condition(service, kind).get("status") == "True" for kind in ("Ready", "MetricsAvailable"))
        and replicas.get("ready", 0) >= max(BOUNDS.needed, replicas.get("desired", 0))
    )


@contextlib.contextmanager
def prepared(services: int) -> Iterator[Campaign]:
    """Install operators, the lying Prometheus and the services, and load them."""
    stack.offer_gpus(4 * services + 4, stack.L40S)
    liar = Liar(f"http://holdfast-prometheus.{stack.NAMESPACE}.svc:9090", NODE_ADDRESS)
    settings = {"nodeProvisioningTime": "15s", "leaseDuration": f"{stack.LEASE_SECONDS:g}s", "prometheusUrl": liar.url}
    sizes = Sizes()
    with contextlib.ExitStack() as entered:
        entered.enter_context(liar.serving())
        given = {f"settings.{name}": value for name, value in settings.items()}
        stack.install(**{"prometheus.scrapeInterval": _SCRAPE, **given})
        entered.enter_context(sizes.watching())
        seats = [entered.enter_context(_loaded(f"campaign-{number}")) for number in range(services)]
        writes = Writes(pathlib.Path(os.environ["HOLDFAST_AUDIT_LOG"]))
        campaign = Campaign(World(nodes.connect(), liar), seats, sizes, writes)
        campaign.settle()
        yield campaign


@contextlib.contextmanager
def _loaded(namespace: str) -> Iterator[Seat]:
    """A service with the needed replicas, and its load."""
    kubectl = Kubectl(namespace)
    kubectl.run("create", "namespace", namespace)
    kubectl.wait_until(lambda: bool(kubectl.items("serviceaccounts")), 60, "the default ServiceAccount")
    kubectl.apply(stack.small_service(NAME, min=BOUNDS.least, max=BOUNDS.most))
    found = kubectl.wait_for("llms", NAME, lambda each: condition(each, "Ready").get("status") == "True", 120, "Ready")
    with SteadyLoad(found["status"]["url"], "Qwen/Qwen3-8B", RATE_RPS) as load:
        yield Seat(namespace, load)


def _path(seat: Seat) -> str:
    return f"/apis/holdfast.dev/v1alpha1/namespaces/{seat.namespace}/llmservices/{NAME}"
