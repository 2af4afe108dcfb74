"""The scenarios of the comparison: files of benchmarks/scenarios, and what is asked of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.autoscaling.requests import shifted, with_prefixes
from holdfast.cli.simulate import declare
from holdfast.simulator.twin.fleet import Workload
from holdfast.simulator.twin.run import Declared
from holdfast.simulator.twin.scenario import Scenario

FOLDER = Path(__file__).resolve().parent.parent / "scenarios"

Change = Callable[[Workload, Scenario, Path, int], Workload]


@dataclass(frozen=True, slots=True)
class Case:
    """One scenario.

    `attains`: Holdfast must attain the objective. `oracle_factor`: at most so many times the oracle's GPU-hours.
    `compared`: counts in the comparison at equal attainment, at the objective or, where `unavoidable`, at what Holdfast
    reached. `window`: seconds of an overload whose goodput counts. `fast_loop`: short enough for the plugin's Python.
    """

    name: str
    attains: bool = False
    oracle_factor: float | None = None
    compared: bool = False
    unavoidable: bool = False
    window: tuple[float, float] | None = None
    fast_loop: bool = False
    change: Change | None = None

    @property
    def path(self) -> Path:
        """Its file."""
        return FOLDER / f"{self.name}.yaml"

    def digest(self) -> str:
        """Of everything that its requests and its cluster come from."""
        here = Path(__file__).resolve().parent
        content = self.path.read_bytes() + (here / "requests.py").read_bytes()
        return hashlib.sha256(content).hexdigest()[:12]

    def scenario(self) -> Scenario:
        """Read its file."""
        return Scenario.read(self.path)

    def declared(self, scenario: Scenario, data: Path, seed: int) -> Sequence[Declared]:
        """Its services with the requests of one seed."""
        found = [declare(scenario, entry, self.path, data, seed) for entry in scenario.services]
        if self.change is None:
            return found
        return [replace(each, workload=self.change(each.workload, scenario, data, seed)) for each in found]


_ALL = (
    Case("diurnal", attains=True, oracle_factor=1.10, compared=True),
    Case("diurnal-small", attains=True, oracle_factor=1.10, compared=True),
    Case("smooth", attains=True, oracle_factor=1.3, compared=True),
    Case("spike", compared=True, unavoidable=True),
    Case("step", oracle_factor=1.3, compared=True, unavoidable=True, fast_loop=True),
    Case("overload", window=(600.0, 1800.0), fast_loop=True),
    Case("shift", attains=True, oracle_factor=1.3, compared=True, unavoidable=True, change=shifted),
    Case("prefix", attains=True, change=with_prefixes),
    Case("faults", fast_loop=True),
)
CASES: Mapping[str, Case] = {case.name: case for case in _ALL}
"""By name, in the order of the design; the fleet of five services is not among them yet."""
