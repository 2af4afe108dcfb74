"""Classes in the twin: its engines are the plugin's to the last bit, and policies see what Prometheus shows of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import Traffic
from holdfast.domain.snapshot import Snapshot
from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.host import NO_FRONT_END, NO_HOST, Host
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.twin.arrays import state_arrays
from holdfast.twin.arrays.fleet import EngineFleet, EngineSpec, Routing, Workload
from holdfast.twin.policies import Holdfast, Static
from holdfast.twin.policy_port import Move
from holdfast.twin.runs.results import attainment, attains, summary
from holdfast.twin.runs.run import Finished
from holdfast.twin.scenarios.inputs import BadInput
from holdfast_engine.law.arithmetic import Law
from holdfast_engine.objectives.rules import UNBOUNDED, Kind, Limits, Objectives, Overload, RequestClass
from tests.twin.object_fleet import ObjectFleet
from tests.twin.twin_builders import HOSTS, LAW, LIMITS, SLO, drawn_workload, play, small_scenario, workload

FIELDS = (
    *state_arrays.COUNTS,
    *state_arrays.EXACT,
    *state_arrays.BATCH_SUMS,
    *state_arrays.BATCH_NOW,
    "due",
    "running",
    "waiting",
    "waiting_late",
    "free_blocks",
    "queued_tokens",
)
PRIOR = Law(0.004, 3e-5, 1e-4, 2e-8, 4e-9)
TIGHT = RequestClass("tight", Objectives(0.2, 0.012), 10)
BULK = RequestClass("bulk", Objectives(20.0, 0.2), -10, min_share=0.2)
NIGHTLY = RequestClass("nightly", UNBOUNDED, 0, Kind.BATCH)
BOUNDS = st.builds(Objectives, st.floats(0.02, 3.0), st.floats(0.003, 0.1), st.none() | st.floats(0.1, 5.0))
SHARES = st.none() | st.floats(0.0, 0.3)
CLASSES = st.lists(
    st.builds(RequestClass, st.just(""), BOUNDS, st.integers(-1, 1), min_share=SHARES, max_share=SHARES)
    | st.builds(RequestClass, st.just(""), st.just(UNBOUNDED), st.integers(-1, 1), st.just(Kind.BATCH))
    | st.builds(RequestClass, st.just(""), BOUNDS, st.integers(-1, 1), adapter=st.just(True)),
    min_size=1,
    max_size=3,
).map(lambda found: tuple(replace(each, name=f"c{place}") for place, each in enumerate(found)))
TOLD = st.builds(
    Limits,
    version=st.just(1),
    objectives=BOUNDS,
    adapt=st.sampled_from([True, True, False]),
    overload=st.sampled_from(Overload),
    max_queued_requests=st.none() | st.integers(1, 20),
    max_queued_seconds=st.none() | st.floats(0.05, 3.0),
    prior=st.none() | st.just(PRIOR),
    classes=CLASSES,
)
REQUESTS = st.lists(
    st.tuples(st.floats(0.0, 0.3) | st.just(0.0), st.integers(1, 900), st.integers(1, 60), st.integers(0, 900)),
    min_size=1,
    max_size=60,
)


def _pair(load: Workload, limits: SchedulerLimits, told: Limits, host: Host = NO_HOST) -> list[EngineFleet]:
    """The same engine, on arrays and as objects."""
    kinds, routing = [EngineSpec(EngineTimer(LAW, host), limits)], Routing("round-robin", seed=1)
    made = [kind(load, kinds, SLO, routing, [told]) for kind in (EngineFleet, ObjectFleet)]
    for fleet in made:
        fleet.add()
    return made


def _assert_same(ours: EngineFleet, theirs: EngineFleet) -> None:
    mine, yours = ours.requests, theirs.requests
    for name in ("state", "first_at", "last_at"):
        np.testing.assert_array_equal(mine[name], yours[name], name)
    one, other = ours.state(0), theirs.state(0)
    assert {name: one[name][0] for name in FIELDS} == {name: other[name][0] for name in FIELDS}
    assert ours.verdicts([0]).tolist() == theirs.verdicts([0]).tolist()


@pytest.mark.parametrize("examples", [25, pytest.param(400, marks=pytest.mark.slow)])
def test_every_time_and_count_is_that_of_the_plugin_to_the_last_bit(examples: int) -> None:
    # With a front end the tokens of one step are written one after the other, and batch stands last there only.
    hosts = HOSTS.map(lambda host: replace(host, front_end=NO_FRONT_END))

    @settings(max_examples=examples)
    @given(REQUESTS, LIMITS, TOLD, st.integers(0, 2**32 - 1), st.just(NO_HOST) | hosts)
    def holds(
        made: list[tuple[float, int, int, int]], limits: SchedulerLimits, told: Limits, seed: int, host: Host
    ) -> None:
        of_class = np.random.default_rng(seed).integers(0, 1 + len(told.classes), len(made))
        ours, theirs = _pair(replace(drawn_workload(made), of_class=of_class), limits, told, host)
        for stop in (1.0, 5.0, math.inf):
            for fleet in (ours, theirs):
                fleet.advance(stop)
                fleet.check()
            _assert_same(ours, theirs)

    holds()


def _mixed(rate_rps: float, seed: int = 5, count: int = 800) -> Workload:
    """Requests without a class, tight ones, bulk and batch."""
    draw = np.random.default_rng(seed)
    at = np.cumsum(draw.exponential(1.0 / rate_rps, count))
    load = workload(at, draw.integers(1, 1200, count), draw.integers(1, 150, count))
    return replace(load, of_class=draw.choice(4, count, p=[0.3, 0.2, 0.2, 0.3]))


@pytest.mark.parametrize("overload", Overload)
@pytest.mark.parametrize("rate", [12.0, 30.0])
def test_it_stays_so_while_the_law_is_learnt_and_memory_lacks(overload: Overload, rate: float) -> None:
    told = Limits(1, Objectives(1.0, 0.03), overload=overload, max_queued_seconds=5.0, prior=PRIOR)
    told = replace(told, classes=(TIGHT, BULK, NIGHTLY))
    ours, theirs = _pair(_mixed(rate), SchedulerLimits(24, 512, 9_000), told)
    for stop in (1.0, 10.0, 30.0, math.inf):
        ours.advance(stop)
        theirs.advance(stop)
        _assert_same(ours, theirs)
    assert ours.state(0)["preemptions"][0] > 0
    assert ours.state(0)["batch_done"][0] > 50


def _scenario(classes: list[dict[str, object]], shares: dict[str, float], **slo: object) -> dict[str, Any]:
    """Three minutes of a small service with these classes."""
    content = small_scenario()
    (service,) = content["services"]
    service["spec"]["slo"] |= {"classes": classes, **slo}
    service["workload"]["classes"] = shares
    return content


URGENT: dict[str, object] = {"name": "urgent", "ttft": "300ms", "objective": "99.9%", "priority": 10}
LATER: dict[str, object] = {"name": "later", "kind": "Batch"}


class _Watched(Holdfast):
    """The operator, and what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Traffic] = []

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        self.seen.append(snapshot.services[0].traffic)
        return super().decide(snapshot)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, list[Traffic]]:
    policy = _Watched()
    content = _scenario([URGENT, LATER], {"urgent": 0.2, "later": 0.5})
    return play(content, tmp_path_factory.mktemp("classes"), policy), policy.seen


def test_policies_see_the_verdicts_of_each_class_and_no_batch(watched: tuple[Finished, list[Traffic]]) -> None:
    traffic = watched[1][-1]
    ((_, seen),) = traffic.by_accelerator
    (urgent,) = traffic.classes
    assert urgent.name == "urgent"
    assert seen.exact is not None
    assert 0.0 < urgent.good < seen.exact.good
    assert seen.batch > 0.0
    # Half of the requests are batch: the rest is 1.5 requests/s.
    assert seen.finished == pytest.approx(1.5 * traffic.interval_seconds, rel=0.35)
    assert seen.exact.arrived == pytest.approx(1.5 * traffic.interval_seconds, rel=0.35)


def test_policies_see_how_much_batch_is_unfinished_and_done(watched: tuple[Finished, list[Traffic]]) -> None:
    traffic = watched[1][-1]
    (later,) = traffic.batch.classes
    assert (later.name, later.done) == ("later", traffic.batch.done)
    assert later.done == pytest.approx(1.5 * traffic.interval_seconds, rel=0.35)
    assert traffic.batch.prompt_tokens == pytest.approx(500.0 * later.done)
    assert traffic.batch.output_tokens == pytest.approx(100.0 * later.done)
    assert 0.0 <= later.unfinished < 30.0


@pytest.mark.parametrize(("rate_rps", "is_enough"), [(100, True), (200, False)])
def test_batch_that_is_to_be_done_by_a_time_gets_replicas_where_one_does_not_do_it(
    tmp_path: Path, rate_rps: float, is_enough: bool
) -> None:
    sizes = []
    for place, more in enumerate(({}, {"finishWithin": "2m"})):
        folder = tmp_path / str(place)
        folder.mkdir()
        content = _scenario([{**LATER, **more}], {"later": 0.9})
        arrivals = [{"at": "0s", "rps": rate_rps}, {"at": "60s", "rps": 1}]
        content["services"][0]["workload"]["arrivals"] = {"poisson": arrivals}
        sizes.append(max(play(content, folder, Holdfast()).sizes[0].ready))
    # An H100 does some 60 of these batch requests/s: the backlog of 100/s in time, that of 200/s not.
    assert (sizes[0] == sizes[1]) == is_enough


def test_results_tell_each_class_and_batch_is_in_no_attainment(watched: tuple[Finished, list[Traffic]]) -> None:
    run, _ = watched
    told = summary(run, 0.0)["services"]["chat"]
    classes = told["classes"]
    assert list(classes) == ["", "urgent", "later"]
    assert told["arrivals"] == classes[""]["arrivals"] + classes["urgent"]["arrivals"]
    assert classes["urgent"]["objective"] == pytest.approx(0.999)
    assert classes["later"]["objective"] is None
    assert classes["later"]["attainment"] > 0.9
    assert attains(run)


def test_an_adapter_with_objectives_is_a_class_that_its_name_selects(tmp_path: Path) -> None:
    policy, content = _Watched(), _scenario([URGENT], {"sql": 0.3}, claim="None")
    terms = {"ttft": "300ms", "objective": "99.9%", "priority": 10}
    adapters = [{"name": "sql", "uri": "pvc://adapters/sql", "slo": terms}]
    content["services"][0]["spec"]["model"]["lora"] = {"adapters": adapters}
    told = summary(play(content, tmp_path, policy), 0.0)["services"]["chat"]["classes"]
    (seen,) = policy.seen[-1].classes
    assert list(told) == ["", "sql"]
    assert told["sql"]["objective"] == pytest.approx(0.999)
    assert seen.name == "sql"
    assert seen.good == pytest.approx(0.9 * policy.seen[-1].interval_seconds, rel=0.5)


def test_a_class_that_misses_its_own_objective_is_a_miss_of_the_service(tmp_path: Path) -> None:
    hopeless = {"name": "hopeless", "tpot": "5ms", "priority": 10}
    run = play(_scenario([hopeless], {"hopeless": 0.005}, objective="95%"), tmp_path, Static(2))
    assert attainment(run, run.services[0]) > 0.95
    assert not attains(run)


@pytest.mark.parametrize(
    ("classes", "slo", "told"),
    [
        ([LATER], {}, "'urgent' is no class of slo.classes and no adapter with an slo: give one of later"),
        ([URGENT], {"claim": "None"}, "claim is None, so no request can claim a class: remove slo.claim"),
    ],
)
def test_shares_that_cannot_be_played_are_refused(
    tmp_path: Path, classes: list[dict[str, object]], slo: dict[str, object], told: str
) -> None:
    with pytest.raises(BadInput, match=re.escape(told)):
        play(_scenario(classes, {"urgent": 0.2}, **slo), tmp_path, Static(1))


@pytest.mark.parametrize("most", [0.1, 0.5])
def test_a_share_that_is_not_exceeded_is_that_of_the_plugin(most: float) -> None:
    limited = replace(TIGHT, max_share=most)
    told = Limits(1, Objectives(1.0, 0.03), prior=PRIOR, classes=(limited, BULK, NIGHTLY))
    ours, theirs = _pair(_mixed(8.0), SchedulerLimits(24, 512, 60_000), told)
    # One in five claims the class; each has the same lengths.
    for stop in (1.0, 70.0, math.inf):
        ours.advance(stop)
        theirs.advance(stop)
        _assert_same(ours, theirs)
    claimed, had = ((each == 1).sum() for each in (ours.workload.of_class, ours.of_class))
    assert had < claimed if most < 0.2 else had > 0.95 * claimed


def test_shares_of_classes_are_at_most_all_requests(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="more than 1 together"):
        play(_scenario([URGENT, LATER], {"urgent": 0.6, "later": 0.5}), tmp_path, Static(1))
