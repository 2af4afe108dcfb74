"""What the operator does, seen from outside: its ticks, its queries, its writes, its CPU and its memory."""

from __future__ import annotations

import datetime
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.scale import rig
from e2e.stack import NAMESPACE as OPERATOR_NAMESPACE

_USER = f"system:serviceaccount:{OPERATOR_NAMESPACE}:holdfast"


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick (or the mean of `ticks` that ended between two looks): wall seconds, whole and by phase."""

    ticks: int
    seconds: float
    phases: dict[str, float]


@dataclass(frozen=True, slots=True)
class Write:
    """One request of the operator that changed something."""

    at: float
    verb: str
    resource: str
    name: str
    code: int

    @property
    def is_lease(self) -> bool:
        return self.resource == "leases"


@dataclass(slots=True)
class Seen:
    """Everything seen between `began_at` and `ended_at` (seconds since the epoch)."""

    began_at: float
    ended_at: float = 0.0
    ticks: list[Tick] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0
    prometheus_cpu_seconds: float = 0.0
    writes: list[Write] = field(default_factory=list)
    queries: dict[float, list[float]] = field(default_factory=dict)  # evaluation time -> seconds of each query

    @property
    def seconds(self) -> float:
        return self.ended_at - self.began_at

    @property
    def tick_count(self) -> int:
        return sum(tick.ticks for tick in self.ticks)

    def written(self) -> Counter[str]:
        """How often each kind of object was written, Leases apart."""
        return Counter(f"{write.verb} {write.resource}" for write in self.writes if not write.is_lease)


class Audit:
    """The API server's log of writes, read on from where the last look ended."""

    def __init__(self) -> None:
        self._path = Path(os.environ["HOLDFAST_AUDIT_LOG"])
        self._offset = self._path.stat().st_size

    def writes(self) -> list[Write]:
        """What the operator wrote since the last look."""
        with self._path.open("rb") as log:
            log.seek(self._offset)
            block = log.read()
        whole = block.rfind(b"\n") + 1  # the last line may be half written
        self._offset += whole
        lines = block[:whole].splitlines()
        return [_write(json.loads(line)) for line in lines if _USER.encode() in line]


class Queries:
    """Prometheus's log of queries, read on from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size

    def by_evaluation_time(self) -> dict[float, list[float]]:
        """Seconds of each query since the last look; all queries of a tick are evaluated at the same time."""
        with self._path.open("rb") as log:
            log.seek(self._offset)
            block = log.read()
        whole = block.rfind(b"\n") + 1
        self._offset += whole
        found: dict[float, list[float]] = {}
        for line in block[:whole].splitlines():
            entry = json.loads(line)
            at = datetime.datetime.fromisoformat(entry["params"]["start"]).timestamp()
            found.setdefault(at, []).append(float(entry["stats"]["timings"]["evalTotalTime"]))
        return found


class Watcher:
    """Looks at the operator twice a tick, on a thread of its own."""

    def __init__(self, address: rig.Rig, tick_seconds: float) -> None:
        self._rig = address
        self._every_seconds = 0.4 * tick_seconds
        self._audit = Audit()
        self._queries = Queries(address.metrics.query_log)

    def ticks(self) -> int:
        """How many ticks the operator has made since its start."""
        return round(self._look()["ticks"])

    def during(self, work: Callable[[], None]) -> Seen:
        """Watch while `work` runs."""
        self._audit.writes(), self._queries.by_evaluation_time()
        seen, stop = Seen(time.time()), threading.Event()
        cpu, store = self._cpu()
        thread = threading.Thread(target=self._look_on, args=(seen, stop))
        thread.start()
        try:
            work()
        finally:
            stop.set()
            thread.join()
        seen.ended_at = time.time()
        used, stored = self._cpu()
        seen.cpu_seconds, seen.prometheus_cpu_seconds = used - cpu, stored - store
        seen.writes = self._audit.writes()
        seen.queries = self._queries.by_evaluation_time()
        return seen

    def _cpu(self) -> tuple[float, float]:
        return rig.cpu_seconds(self._rig.operator_pid), rig.cpu_seconds(self._rig.metrics.prometheus_pid)

    def _look_on(self, seen: Seen, stop: threading.Event) -> None:
        before = self._look()
        while not stop.wait(self._every_seconds):
            after = self._look()
            count = round(after["ticks"] - before["ticks"])
            if count:
                means = {name: (after[name] - before.get(name, 0.0)) / count for name in after}
                phases = {name: seconds for name, seconds in means.items() if name not in ("ticks", "seconds")}
                seen.ticks.append(Tick(count, means["seconds"], phases))
                before = after
            seen.memory_mib.append(rig.memory_mib(self._rig.operator_pid))

    def _look(self) -> dict[str, float]:
        names = {"holdfast_tick_seconds_count": "ticks", "holdfast_tick_seconds_sum": "seconds"}
        found = {"ticks": 0.0, "seconds": 0.0}
        # Looks come far more often than scrapes: only what is looked for is worked out for them.
        wanted = "&".join(f"name[]={name}" for name in (*names, "holdfast_tick_phase_seconds_sum"))
        for name, labels, value in _samples(rig.get(f"{self._rig.operator}/metrics?{wanted}")):
            if name in names:
                found[names[name]] = value
            elif name == "holdfast_tick_phase_seconds_sum":
                found[labels["phase"]] = value
        return found


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    wanted = "\n".join(line for line in text.splitlines() if "holdfast_tick" in line)
    for family in text_string_to_metric_families(wanted + "\n"):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def _write(entry: dict[str, Any]) -> Write:
    target = entry["objectRef"]
    subresource = f"/{target['subresource']}" if "subresource" in target else ""
    at = datetime.datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
    code = int(entry.get("responseStatus", {}).get("code", 0))
    return Write(at, entry["verb"], target["resource"] + subresource, target.get("name", ""), code)
