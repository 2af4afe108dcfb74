"""Which runs are made: every policy, and every peer's knob as far as its front is needed."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from threading import Lock

from benchmarks.autoscaling.cases import Case
from benchmarks.autoscaling.fixed_limits import Limits, best_capped, best_limits, with_limits
from benchmarks.autoscaling.journal import Journal, Key, Row
from benchmarks.autoscaling.played import played
from benchmarks.autoscaling.scarcity import Scarcity, scarcity
from holdfast.cli.simulate import SEARCHED
from holdfast.domain.service import ServiceSpec
from holdfast.twin.policies import POLICIES, make_policy
from holdfast.twin.runs.results import good, summary
from holdfast.twin.runs.run import Finished, simulate
from holdfast.twin.scenarios.declared_service import Declared
from holdfast.twin.scenarios.scenario import Scenario

SHIPPED = {name: value for name, (knobs, _) in POLICIES.items() for value in knobs.values()}
"""Each peer's knob as its makers ship it; more of it is fewer replicas, with all of them."""

Asked = tuple[Case, Path, str, float | None, int, Limits | None]

STEP = 2.0**0.25
LOWEST, HIGHEST = -28, 16
OWN = ("holdfast", "holdfast-slow")
APART = "holdfast-apart"


def knob_value(peer: str, place: int) -> float:
    """The knob `place` steps of a factor of 2^0.25 from what is shipped."""
    return SHIPPED[peer] * STEP**place


class Campaign:
    """Runs what is asked for, unless the journal has it; from many threads at once where `workers` are processes."""

    def __init__(self, journal: Journal, data: Path, workers: Executor | None = None) -> None:
        self._journal = journal
        self._data = data
        self._workers = workers
        self._writing = Lock()

    def run(self, case: Case, policy: str, seed: int, place: int | None = None, limits: Limits | None = None) -> Row:
        """One run; `place` is that of the knob."""
        knob = None if place is None else knob_value(policy, place)
        case_label = self._journal.case_label(case.title, case.digest())
        key = Key(case.title, case_label, policy, knob, seed, self._journal.label(policy), limits)
        found = self._journal.get(key)
        if found is None:
            found = self._made(case, self._data, policy, knob, seed, limits)
            with self._writing:
                self._journal.add(key, found)
            told = ("" if knob is None else f" {knob:.3g}") + ("" if limits is None else f" {tuple(limits)}")
            print(
                f"{case.title} {policy}{told} seed {seed}: {100 * found.attainment:.2f} % "
                f"{found.gpu_hours:.2f} GPU-h, {found.wall_seconds:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        return found

    def _made(self, *asked: *Asked) -> Row:
        return simulated(*asked) if self._workers is None else self._workers.submit(simulated, *asked).result()

    def bounds(self, case: Case) -> tuple[float, int]:
        """The share of requests that the scenario's service asks for, and the most replicas that it may have."""
        _, each = self._first(case)
        return each.spec.slo.objective, each.spec.max_replicas

    def services(self, case: Case) -> list[ServiceSpec]:
        """The scenario's services, by priority."""
        return sorted((each.spec for each in _declared(case, self._data, seed=1)), key=lambda spec: -spec.priority)

    def best_limits(self, case: Case) -> Limits:
        """The fixed limits with which a replica carries the most of the scenario's requests."""
        return best_limits(*self._first(case))

    def best_capped(self, case: Case, limits: Limits) -> Limits:
        """The same limits with the cap on queued prompts that keeps the most good where more comes than is carried."""
        return best_capped(*self._first(case), limits)

    def _first(self, case: Case) -> tuple[Scenario, Declared]:
        """The scenario and its only service, with the requests of the first seed."""
        (each,) = _declared(case, self._data, seed=1)
        return case.scenario(), each

    def front(
        self, case: Case, peer: str, seed: int, target: float, limits: Limits | None = None, near: int = 0
    ) -> dict[int, Row]:
        """A peer's runs around the leanest knob that attains the target, by place; what is shipped is among them.

        It is looked for from `near` outwards.
        """
        rows: dict[int, Row] = {}

        def attains(place: int) -> bool:
            rows[place] = self.run(case, peer, seed, place, limits)
            return rows[place].attainment >= target

        attains(0)
        leanest(attains, near)
        return rows


def simulated(case: Case, data: Path, policy: str, knob: float | None, seed: int, limits: Limits | None) -> Row:
    """Make one run."""
    started = time.monotonic()
    scenario = case.scenario()
    declared = [with_limits(each, limits) for each in _declared(case, data, seed)]
    if policy in SEARCHED:
        finished = SEARCHED[policy](scenario, declared, seed, lambda share: None)
    else:
        knobs = {} if knob is None else dict.fromkeys(POLICIES[policy][0], knob)
        finished = simulate(scenario, declared, make_policy(policy, knobs), seed)
    wall_seconds = time.monotonic() - started
    return replace(_row(case, finished, wall_seconds), scarcity=_scarcity(case, policy, finished, declared[0]))


@lru_cache(maxsize=16)
def _declared(case: Case, data: Path, seed: int) -> Sequence[Declared]:
    """The case's services; one process plays many policies with the same requests."""
    return case.declared(case.scenario(), data, seed)


def _scarcity(case: Case, policy: str, run: Finished, each: Declared) -> Scarcity | None:
    """What Holdfast lost where loss is unavoidable."""
    if not case.scarce or policy not in OWN:
        return None
    return scarcity(played(run, each, make_policy(policy, {}).tick_seconds))


def leanest(attains: Callable[[int], bool], near: int = 0) -> int | None:
    """The highest place that attains, from `near` outwards in growing strides, then by halves; None where none does."""

    def is_enough(place: int) -> bool:
        return place < LOWEST or (place <= HIGHEST and attains(place))

    # What is shipped says little; where another scenario's best is, this one's is not far.
    stride = 4 if near == 0 else 1
    if is_enough(near):
        low, high = near, near + stride
        while is_enough(high):
            stride *= 2
            low, high = high, min(high + stride, HIGHEST + 1)
    else:
        low, high = near - stride, near
        while not is_enough(low):
            stride *= 2
            low, high = max(low - stride, LOWEST - 1), low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_enough(middle) else (low, middle)
    return low if low >= LOWEST else None


def cheapest(rows: dict[int, Row], target: float) -> tuple[int, Row] | None:
    """The run with the fewest GPU-hours that attains the target."""
    found = [(place, row) for place, row in rows.items() if row.attainment >= target]
    return min(found, key=lambda each: each[1].gpu_hours, default=None)


def _row(case: Case, run: Finished, wall_seconds: float) -> Row:
    told = summary(run, wall_seconds)
    services = told["services"]
    window_rps = None
    if case.window is not None:
        begins, ends = case.window
        (service,) = run.services
        at = service.fleet.requests["at"]
        window_rps = float((good(service) & (at >= begins) & (at < ends)).sum()) / (ends - begins)
    return Row(
        attainment=told["attainment"] or 0.0,
        gpu_hours=told["gpu_hours"],
        cost_dollars=told["cost_dollars"] or 0.0,
        goodput_rps=sum(each["goodput_rps"] for each in services.values()),
        ttft_p99_seconds=max(each["ttft_p99_seconds"] or math.inf for each in services.values()),
        tpot_p99_seconds=max(each["tpot_p99_seconds"] or math.inf for each in services.values()),
        scale_actions=told["scale_actions"],
        wall_seconds=wall_seconds,
        label=run.policy,
        window_goodput_rps=window_rps,
        by_service={name: each["attainment"] or 0.0 for name, each in services.items()} if case.shared else None,
    )
