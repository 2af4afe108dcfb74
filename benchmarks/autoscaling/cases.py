"""The scenarios of the comparison: files of benchmarks/scenarios, and what is asked of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from benchmarks.autoscaling.requests import shifted, with_prefixes
from holdfast.cli.simulate import declare
from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.scenarios.declared_service import Declared
from holdfast.twin.scenarios.scenario import ClusterEntry, Scenario

FOLDER = Path(__file__).resolve().parent.parent / "scenarios"

Router = Literal["random-per-connection", "round-robin", "least-outstanding"]
Change = Callable[[Workload, Scenario, Path, int], Workload]


@dataclass(frozen=True, slots=True)
class Variation:
    """What differs in one thing: the host's factor, cold start in seconds, router, or objective."""

    name: str
    host_factor: float | None = None
    cold_start: float | None = None
    router: Router | None = None
    objective: float | None = None

    def asked(self, each: Declared) -> Declared:
        """The service with that."""
        if self.objective is None:
            return each
        return replace(each, spec=replace(each.spec, slo=replace(each.spec.slo, objective=self.objective)))

    def of(self, cluster: ClusterEntry) -> ClusterEntry:
        """The cluster with that."""
        given = {"host_factor": self.host_factor, "cold_start": self.cold_start}
        update = {field: value for field, value in given.items() if value is not None}
        entries = {name: entry.model_copy(update=update) for name, entry in cluster.accelerators.items()}
        return cluster.model_copy(update={"accelerators": entries, "router": self.router or cluster.router})


@dataclass(frozen=True, slots=True)
class Case:
    """One scenario.

    `attains`: Holdfast must attain the objective. `oracle_factor`: at most so many times the oracle's GPU-hours.
    `compared`: counts in the comparison at equal attainment. Everybody's attainment is to be the objective or, where
    loss is `unavoidable`, what Holdfast reached. `scarce`: no peer may attain more for as little. `window`: seconds of
    an overload whose goodput counts. `alone`: Holdfast alone plays it. `shared`: so does it, but with several services,
    beside the same loop for each of them by itself. `name` is its file's; `variation` is what it differs in from the
    file's.
    """

    name: str
    attains: bool = False
    oracle_factor: float | None = None
    compared: bool = False
    unavoidable: bool = False
    scarce: bool = False
    window: tuple[float, float] | None = None
    alone: bool = False
    shared: bool = False
    change: Change | None = None
    variation: Variation | None = None

    @property
    def title(self) -> str:
        """What it is called."""
        return self.name if self.variation is None else f"{self.name}, {self.variation.name}"

    @property
    def path(self) -> Path:
        """Its file."""
        return FOLDER / f"{self.name}.yaml"

    def digest(self) -> str:
        """Of everything that its requests and its cluster come from."""
        here = Path(__file__).resolve().parent
        content = self.path.read_bytes() + (here / "requests.py").read_bytes()
        if self.variation is not None:
            content += repr(self.variation).encode()
        return hashlib.sha256(content).hexdigest()[:12]

    def scenario(self) -> Scenario:
        """Read its file."""
        found = Scenario.read(self.path)
        if self.variation is None:
            return found
        return found.model_copy(update={"name": self.title, "cluster": self.variation.of(found.cluster)})

    def declared(self, scenario: Scenario, data: Path, seed: int) -> Sequence[Declared]:
        """Its services with the requests of one seed."""
        found = [declare(scenario, entry, self.path, data, seed) for entry in scenario.services]
        if self.variation is not None:
            found = [self.variation.asked(each) for each in found]
        if self.change is None:
            return found
        return [replace(each, workload=self.change(each.workload, scenario, data, seed)) for each in found]


_ALL = (
    Case("diurnal", attains=True, oracle_factor=1.10, compared=True),
    Case("diurnal-small", attains=True, oracle_factor=1.10, compared=True),
    Case("smooth", attains=True, oracle_factor=1.3, compared=True),
    Case("spike", compared=True, unavoidable=True, scarce=True),
    Case("step", oracle_factor=1.3, compared=True, unavoidable=True, scarce=True),
    Case("overload", unavoidable=True, scarce=True, window=(600.0, 1800.0)),
    Case("shift", attains=True, oracle_factor=1.3, compared=True, unavoidable=True, change=shifted),
    Case("prefix", attains=True, change=with_prefixes),
    Case("faults", unavoidable=True, scarce=True),
)
CASES: Mapping[str, Case] = {case.name: case for case in _ALL}
"""By name, in the order of the design."""

SHARED = Case("fleet", shared=True)
"""Not in the comparison: attainment by priorities is not one number to be equal at."""

SUBSET = ("step", "smooth")
"""What is short enough for every change of the code."""

VARIATIONS = (
    Variation("host x 0", host_factor=0.0),
    Variation("host x 2", host_factor=2.0),
    Variation("round-robin", router="round-robin"),
    Variation("least-outstanding", router="least-outstanding"),
    Variation("cold start 30 s", cold_start=30.0),
    Variation("cold start 240 s", cold_start=240.0),
)
COMPARED = tuple(case.name for case in _ALL if case.compared)
VARIED_ORACLE_FACTORS = {"diurnal": 1.15, "diurnal-small": 1.15}


def varied(variation: Variation, names: Collection[str] = COMPARED) -> list[Case]:
    """The compared scenarios on another cluster, where they are among these; the oracle's bar is the first two's."""
    among = [CASES[name] for name in COMPARED if name in names]
    return [
        replace(
            case,
            variation=variation,
            attains=case.name in VARIED_ORACLE_FACTORS,
            oracle_factor=VARIED_ORACLE_FACTORS.get(case.name),
            scarce=False,
        )
        for case in among
    ]


RELAXED = Variation("objective 95 %", objective=0.95)


def relaxed(case: Case) -> Case:
    """A scenario whose objective must be attained, with the lower objective, which must be attained, too."""
    return Case(case.name, attains=True, alone=True, change=case.change, variation=RELAXED)
