"""The plugin on arrays against the plugin itself: one object per request and step, on the same clock."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.host import NO_HOST, USUAL_FRONT_END, Host, usual_host
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.twin.arrays import compiled, state_arrays
from holdfast.twin.arrays import engines as engines_module
from holdfast.twin.arrays.compiled import SOURCES
from holdfast.twin.arrays.fleet import ROUTERS, EngineFleet, EngineSpec, Routing, Workload
from holdfast_engine.law.arithmetic import Law
from holdfast_engine.objectives.rules import Limits, Objectives, Overload
from tests.twin.object_fleet import ObjectFleet
from tests.twin.twin_builders import HOSTS, LAW, LIMITS, SLO, drawn_workload, workload

FIELDS = (
    *state_arrays.COUNTS,
    *state_arrays.EXACT,
    "due",
    "running",
    "waiting",
    "waiting_late",
    "free_blocks",
    "queued_tokens",
)

requests = st.lists(
    st.tuples(st.floats(0.0, 0.3) | st.just(0.0), st.integers(1, 900), st.integers(1, 60), st.integers(0, 900)),
    min_size=1,
    max_size=60,
)  # gap, prompt, output, cached
asked = st.builds(
    Limits,
    version=st.just(1),
    objectives=st.builds(Objectives, st.floats(0.02, 2.0), st.floats(0.003, 0.1), st.none() | st.floats(0.1, 5.0)),
    active_sequences=st.none() | st.integers(1, 12),
    tokens_per_step=st.none() | st.integers(1, 1500),
    adapt=st.sampled_from([True, True, False]),
    overload=st.sampled_from(Overload),
    max_queued_requests=st.none() | st.integers(1, 20),
    max_queued_seconds=st.none() | st.floats(0.05, 3.0),
    prior=st.none() | st.floats(0.2, 5.0).map(lambda gain: Law(0.004 * gain, 3e-5 * gain, 1e-4, 2e-8, 4e-9)),
)


def _pair(
    load: Workload,
    limits: SchedulerLimits,
    told: Limits,
    router: str = "round-robin",
    count: int = 1,
    host: Host = NO_HOST,
) -> tuple[EngineFleet, EngineFleet]:
    """The same engines, on arrays and as objects."""
    made = [
        kind(load, [EngineSpec(EngineTimer(LAW, host), limits)], SLO, Routing(router, seed=1), [told])
        for kind in (EngineFleet, ObjectFleet)
    ]
    for fleet in made:
        for _ in range(count):
            fleet.add()
    return made[0], made[1]


def assert_same(ours: EngineFleet, theirs: EngineFleet, engines: range) -> None:
    """What became of every request, and what every engine counted."""
    mine, yours = ours.requests, theirs.requests
    for name in ("state", "engine", "first_at", "last_at"):
        np.testing.assert_array_equal(mine[name], yours[name], name)
    ended = mine["state"] == state_arrays.FINISHED
    np.testing.assert_array_equal(mine["preemptions"][ended], yours["preemptions"][ended])
    np.testing.assert_array_equal(ours.finished, theirs.finished)
    for number in engines:
        mine, yours = ours.state(number), theirs.state(number)
        assert {name: mine[name][0] for name in FIELDS} == {name: yours[name][0] for name in FIELDS}
        # The plugin counts in larger units.
        sums = [[float(state[name][0]) for name in state_arrays.STEPS] for state in (mine, yours)]
        assert sums[0] == pytest.approx(sums[1], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("examples", [25, pytest.param(400, marks=pytest.mark.slow)])
def test_every_time_and_count_is_that_of_the_plugin_to_the_last_bit(examples: int) -> None:
    @settings(max_examples=examples)
    @given(
        requests,
        LIMITS,
        asked,
        st.sampled_from(sorted(ROUTERS)),
        st.integers(1, 3),
        st.lists(st.floats(0.0, 15.0), max_size=5),
        st.just(NO_HOST) | HOSTS,
    )
    def holds(
        made: list[tuple[float, int, int, int]],
        limits: SchedulerLimits,
        told: Limits,
        router: str,
        count: int,
        stops: list[float],
        host: Host,
    ) -> None:
        ours, theirs = _pair(drawn_workload(made), limits, told, router, count, host)
        for stop in (*sorted(stops), math.inf):
            for fleet in (ours, theirs):
                fleet.advance(stop)
                fleet.check()
            assert_same(ours, theirs, range(count))

    holds()


@pytest.mark.parametrize("overload", Overload)
@pytest.mark.parametrize("prior", [None, Law(0.008, 6e-5, 1e-4, 0.0, 0.0)])
@pytest.mark.parametrize("host", [NO_HOST, replace(usual_host(8), front_end=USUAL_FRONT_END)], ids=["none", "usual"])
def test_it_stays_so_while_the_law_is_learnt_and_memory_lacks(
    overload: Overload, prior: Law | None, host: Host
) -> None:
    draw = np.random.default_rng(3)
    load = workload(np.cumsum(draw.exponential(0.04, 500)), draw.integers(1, 1200, 500), draw.integers(1, 150, 500))
    told = Limits(1, Objectives(0.4, 0.02), overload=overload, max_queued_seconds=2.0, prior=prior)
    ours, theirs = _pair(load, SchedulerLimits(24, 512, 9_000), told, host=host)
    for stop in (1.0, 10.0, 30.0, math.inf):
        ours.advance(stop)
        theirs.advance(stop)
        assert_same(ours, theirs, range(1))
    state = ours.state(0)
    assert state["preemptions"][0] > 0
    assert state["judged_good"][0] > 50
    assert (ours.requests["state"] == state_arrays.LOST).any()
    assert (ours.requests["state"] == state_arrays.REJECTED).any() == (overload is Overload.REJECT)


def test_a_later_engine_of_the_same_number_begins_anew() -> None:
    load = drawn_workload([(0.05, 400, 30, 0)] * 200)
    ours, theirs = _pair(
        load, SchedulerLimits(8, 512, 8_000), Limits(1, Objectives(0.3, 0.02)), "random-per-connection"
    )
    for fleet in (ours, theirs):
        fleet.advance(2.0)
        second = fleet.add()
        fleet.advance(4.0)
        fleet.remove(0)
        for _ in range(10):
            fleet.add()
        assert second == 1
        fleet.advance(math.inf)
        fleet.check()
    assert_same(ours, theirs, range(12))


def test_machine_code_is_kept_by_the_sources_that_it_comes_from() -> None:
    folder = Path(engines_module.__file__).parent
    compiling = {path.stem for path in folder.glob("*.py") if f"{compiled.__name__} import" in path.read_text()}
    listed = {name.rpartition(".")[2] for name in SOURCES if name.startswith(compiled.__package__)}
    assert compiling | {"compiled", "fast_loop_arrays", "state_arrays"} == listed
