"""Whatever is edited, fails or is lacking: no bound is broken, nothing stays beyond one, and somebody serves on."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.api.llmservice import LLMService
from holdfast.api.parsing import InvalidObject
from holdfast.domain.service import ServiceSpec
from holdfast.domain.signals import SignalState
from holdfast.observe.objects.spec import to_spec
from holdfast.policy.placement.on_demand_pair import twins
from tests.api.refusals import MINIMAL
from tests.builders import ServiceBuilder
from tests.policy.fluid import FluidCluster, steps

RATES = {"h100": 5.0, "h100-spot": 5.0, "l40s": 2.0, "l40s-spot": 2.0, "a100": 3.0}
PATIENCE_SECONDS = 400.0
"""A replica pends for 300 s before it proves short, then the next choice starts cold, and the old one drains."""

Body = dict[str, Any]


def a_body(draw: random.Random) -> Body:
    """A service as people might write it, maybe one that is refused."""
    priced = draw.random() < 0.75
    names = draw.sample(sorted(RATES), draw.choice([1, 2, 2, 2, 3, 4]))
    spec: Body = {"accelerators": [an_accelerator(draw, name, priced) for name in names], "scaling": {}}
    if priced and draw.random() < 0.6:
        spec["budget"] = {"maxCostPerHour": draw.choice([0.3, 1, 2.1, 4, 6, 9, 12, 20])}
    for field, counts in (("min", [1, 1, 2, 3, 4]), ("max", [1, 2, 4, 6, 10]), ("minOnDemand", [0, 0, 1, 2])):
        if draw.random() < 0.7:
            spec["scaling"][field] = draw.choice(counts)
    if draw.random() < 0.25:
        spec["replicas"] = draw.choice([1, 2, 3, 5])
    body = copy.deepcopy(MINIMAL)
    body["metadata"] |= {"namespace": "prod", "uid": "1", "generation": 1}
    body["spec"] |= spec
    return body


def an_accelerator(draw: random.Random, name: str, priced: bool) -> Body:
    found: Body = {"name": name, "spot": name.endswith("-spot")}
    if draw.random() < 0.5:
        found["max"] = draw.choice([0, 1, 2, 3, 5])
    if priced:
        found["costPerHour"] = draw.choice([0, 0.1, 0.7, 1.2, 2.5, 3.333334, 4])
    return found


def edited(draw: random.Random, body: Body) -> Body:
    """The same with one thing changed."""
    after = copy.deepcopy(body)
    spec, listed = after["spec"], after["spec"]["accelerators"]
    other = a_body(draw)["spec"]
    what = draw.choice(["accelerator", "accelerator", "drop", "add", "budget", "budget", "scaling", "pin", "unpin"])
    if what == "accelerator":
        at = draw.randrange(len(listed))
        listed[at] = an_accelerator(draw, listed[at]["name"], "costPerHour" in listed[at])
    elif what == "drop" and len(listed) > 1:
        listed.pop(draw.randrange(len(listed)))
    elif what == "add":
        new = [name for name in RATES if name not in {each["name"] for each in listed}]
        listed += [an_accelerator(draw, name, "costPerHour" in listed[0]) for name in new[:1]]
    elif what in ("budget", "scaling"):
        spec.pop(what, None)
        spec |= {what: other[what]} if what in other else {}
    else:
        spec.pop("replicas", None)
        spec |= {"replicas": draw.choice([1, 2, 3, 5])} if what == "pin" else {}
    return after


def allowed(make: Any, *arguments: Any) -> tuple[Body, ServiceSpec]:
    """What is made until one is taken."""
    while True:
        body = make(*arguments)
        try:
            return body, to_spec(LLMService.parse(body))
        except InvalidObject:
            continue


class Attacked:
    """A cluster under random edits that is watched tick by tick; `found` are its breaches."""

    def __init__(self, seed: int, faults: bool) -> None:
        self.draw = draw = random.Random(seed)
        self.body, spec = allowed(a_body, draw)
        rates = draw.choice([0.5, 3.0, 8.0, 14.0, 30.0]), draw.choice([0.5, 5.0, 20.0])
        self.cluster = FluidCluster(ServiceBuilder(spec), steps((0, rates[0]), (600, rates[1])), RATES, seed=seed)
        self.faults = faults
        self.found: list[str] = []
        self.beyond: dict[str, float] = {}
        self.restarts = 0.01 if faults and draw.random() < 0.3 else 0.0
        if faults:
            self._break(draw)

    def _break(self, draw: random.Random) -> None:
        if draw.random() < 0.6:
            self.cluster.gpus = {name: draw.choice([0, 1, 2, 4]) for name in RATES if draw.random() < 0.6}
        if draw.random() < 0.4:
            self.cluster.broken = frozenset(name for name in RATES if draw.random() < 0.3)
        if draw.random() < 0.3:
            start, length = draw.choice([100.0, 500.0, 900.0]), draw.choice([60.0, 200.0])
            dark = lambda now: start <= now % 1250.0 < start + length  # noqa: E731
            self.cluster.sight = lambda now: SignalState.UNREACHABLE if dark(now) else SignalState.FRESH

    def run(self, edits: int) -> Attacked:
        for _ in range(edits):
            self._watch(self.draw.choice([200.0, 600.0]))
            self.body, spec = allowed(edited, self.draw, self.body)
            self.cluster.with_spec(ServiceBuilder(spec))
            self.beyond.clear()
        self._watch(1200.0)
        if not self.faults:
            self._judge_rest()
        return self

    def _judge_rest(self) -> None:
        """Long after the last edit nothing is left beside what was chosen, or what a pinned size is shared among."""
        sizes, spec, told = self.cluster.size, self.spec, self.cluster.last()
        assert told.capacity is not None
        chosen = spec.accelerator(told.capacity.accelerator)
        assert chosen is not None
        kept = {chosen.name, *(twin.name for twin in twins(spec, chosen))}
        if spec.pinned_replicas is not None:
            kept = {option.name for option in spec.accelerators if option.max_replicas != 0}
            if sum(sizes.values()) != spec.pinned_replicas and "allow only" not in told.verdict.message:
                self._tell("the pinned size is not kept")
        if any(size and name not in kept for name, size in sizes.items()):
            self._tell(f"something is left beside {chosen.name}")

    def _watch(self, seconds: float) -> None:
        end = self.cluster.clock + seconds
        while self.cluster.clock < end:
            if self.draw.random() < self.restarts:
                self.cluster.restart_operator()
            before, served = dict(self.cluster.size), self.cluster.ready()
            self.cluster.run(self.cluster.tick)
            self._judge(before, served, self.cluster.ready())

    @property
    def spec(self) -> ServiceSpec:
        return self.cluster.builder.spec

    def _judge(self, before: Mapping[str, int], served: Mapping[str, int], serves: Mapping[str, int]) -> None:
        sizes, spec = self.cluster.size, self.spec
        most = max(spec.max_replicas, spec.pinned_replicas or 0)
        self._bound("scaling.max", sum(before.values()), sum(sizes.values()), most)
        for option in spec.accelerators:
            if option.max_replicas is not None:
                name = option.name
                self._bound(f"max of {name}", before.get(name, 0), sizes.get(name, 0), option.max_replicas)
        if spec.max_cost_per_hour is not None and not self._last_one_is_replaced(served):
            self._bound("budget", self._cost(before), self._cost(sizes), spec.max_cost_per_hour)
        if sum(served.values()) and not sum(serves.values()) and spec.max_replicas > 1:
            self._tell(f"nobody serves after {dict(served)}")

    def _cost(self, sizes: Mapping[str, int]) -> float:
        return sum(
            (option.cost_per_replica_hour or 0.0) * sizes.get(option.name, 0) for option in self.spec.accelerators
        )

    def _last_one_is_replaced(self, served: Mapping[str, int]) -> bool:
        return sum(served.values()) == 1 and sum(self.cluster.size.values()) == 2

    def _bound(self, what: str, before: float, after: float, most: float) -> None:
        """Nothing rises above a bound; what is above it since an edit comes down in time, where others can be had."""
        if after <= most + 1e-6:
            self.beyond.pop(what, None)
            return
        since = self.beyond.setdefault(what, self.cluster.clock)
        if after > before + 1e-6:
            self._tell(f"{what} {most:g}: {before:g} -> {after:g}")
        if self.cluster.clock - since > PATIENCE_SECONDS and not self.cluster.broken and not self.cluster.gpus:
            self._tell(f"{what} {most:g}: still {after:g}")

    def _tell(self, breach: str) -> None:
        sizes = {name: size for name, size in self.cluster.size.items() if size}
        spec = {name: part for name, part in self.body["spec"].items() if name not in ("model", "slo")}
        self.found.append(
            f"{self.cluster.clock:.0f} s: {breach}; {sizes} {spec}: {self.cluster.last().verdict.message}"
        )


SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_edits_break_no_bound_and_send_nobody_away_who_serves_alone(seed: int) -> None:
    assert Attacked(seed, faults=False).run(edits=4).found == []


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_neither_do_they_while_accelerators_fail_are_short_or_are_not_seen(seed: int) -> None:
    assert Attacked(seed, faults=True).run(edits=4).found == []
