"""The compiled loop against enginemodel's Scheduler, which says what a step is."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.service import Slo
from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.host import NO_HOST, USUAL_FRONT_END, Host, usual_host
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.replay import Arrival, replay
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.steplaw import StepTimer
from holdfast.twin.arrays import compiled, state_arrays
from holdfast.twin.arrays.fleet import ROUTERS, EngineFleet, EngineSpec, Routing, Workload
from holdfast_engine.objectives.rules import Limits, Objectives
from tests.twin.twin_builders import HOSTS, LAW, LIMITS, SLO, drawn_workload

ROOT = Path(__file__).parents[2]
PRIOR = engine_prior("meta-llama/Llama-3.1-8B", "h100")
REQUEST = st.tuples(
    st.floats(0.0, 0.3), st.integers(1, 900), st.integers(1, 60), st.integers(0, 900)
)  # gap, prompt, output, cached


def _both(
    load: Workload, limits: SchedulerLimits, timer: StepTimer
) -> tuple[EngineFleet, list[tuple[float, float, int]]]:
    """The fleet after everything, and what the Scheduler makes of the same: first token, last token, preemptions."""
    fleet = EngineFleet(load, [EngineSpec(timer, limits)], SLO, Routing("round-robin"))
    fleet.add()
    fleet.advance(math.inf)
    columns = (load.at, load.prompt_tokens, load.output_tokens, load.cached_tokens)
    outcomes = replay([Arrival(*each) for each in zip(*(c.tolist() for c in columns), strict=True)], limits, timer)
    return fleet, [(each.ttft_seconds, each.e2e_seconds, each.preemptions) for each in outcomes]


@pytest.mark.slow
@pytest.mark.parametrize("timer", [PRIOR.gpu, PRIOR.law, LAW], ids=["table", "fitted law", "law"])
@settings(max_examples=60)
@given(requests=st.lists(REQUEST, min_size=1, max_size=40), limits=LIMITS, host=st.just(NO_HOST) | HOSTS)
def test_every_time_is_that_of_the_scheduler_loop_to_the_last_bit(
    timer: StepTimer, requests: list[tuple[float, int, int, int]], limits: SchedulerLimits, host: Host
) -> None:
    fleet, expected = _both(drawn_workload(requests), limits, EngineTimer(timer, host))
    fleet.check()
    found = fleet.requests
    for each, (ttft, e2e, preemptions) in zip(found, expected, strict=True):
        if math.isinf(ttft):
            assert each["state"] == state_arrays.REJECTED
        else:
            assert each["state"] == state_arrays.FINISHED
            assert (each["first_at"] - each["at"], each["last_at"] - each["at"]) == (ttft, e2e)
            assert each["preemptions"] == preemptions


@settings(max_examples=40)
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=60),
    limits=LIMITS,
    router=st.sampled_from(sorted(ROUTERS)),
    stops=st.lists(st.floats(0.0, 20.0), max_size=6),
    engines=st.integers(1, 20),
    host=HOSTS,
)
def test_requests_and_blocks_are_conserved_while_engines_come_and_go(
    requests: list[tuple[float, int, int, int]],
    limits: SchedulerLimits,
    router: str,
    stops: list[float],
    engines: int,
    host: Host,
) -> None:
    spec = EngineSpec(EngineTimer(LAW, host), limits)
    fleet = EngineFleet(drawn_workload(requests), [spec], SLO, Routing(router, seed=1))
    alive = [fleet.add() for _ in range(engines)]
    for number, stop in enumerate(sorted(stops)):
        fleet.advance(stop)
        fleet.check()
        if number % 3 == 0 and alive:
            fleet.close(alive[0])
        elif number % 3 == 1 and alive:
            fleet.remove(alive.pop(0))
        else:
            alive.append(fleet.add())
        fleet.check()
    fleet.advance(math.inf)
    fleet.check()
    assert fleet.done
    assert np.isin(
        fleet.requests["state"],
        (state_arrays.FINISHED, state_arrays.REJECTED, state_arrays.UNSERVED, state_arrays.LOST),
    ).all()


@pytest.mark.parametrize("host", [NO_HOST, replace(usual_host(8), front_end=USUAL_FRONT_END)], ids=["none", "usual"])
def test_stopping_in_between_changes_nothing(host: Host) -> None:
    load = drawn_workload([(0.05, 300 + number, 20, 0) for number in range(200)])
    kind = EngineSpec(EngineTimer(LAW, host), SchedulerLimits(16, 2048, 20_000))
    whole, parts = (EngineFleet(load, [kind], SLO, Routing(seed=3)) for _ in range(2))
    for fleet in (whole, parts):
        fleet.add()
        fleet.add()
    whole.advance(100.0)
    for stop in np.arange(0.0, 100.1, 0.7):
        parts.advance(float(stop))
    parts.advance(100.0)
    assert whole.requests.tobytes() == parts.requests.tobytes()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    load = drawn_workload([(0.02, 200, 30, 0) for _ in range(300)])
    kind = EngineSpec(LAW, SchedulerLimits(16, 2048, 20_000))

    def run(seed: int) -> bytes:
        fleet = EngineFleet(load, [kind], SLO, Routing(seed=seed))
        for _ in range(5):
            fleet.add()
        fleet.advance(math.inf)
        return fleet.requests.tobytes()

    assert run(1) == run(1) != run(2)


def test_engines_count_what_became_of_their_requests() -> None:
    load = drawn_workload([(0.05, 100 + 7 * number, 1 + number % 40, 32) for number in range(100)])
    slo = Slo(0.012, 0.0046, 0.99, 3600.0, e2e_seconds=0.4)
    fleet = EngineFleet(load, [EngineSpec(LAW, SchedulerLimits(8, 512, 20_000, max_num_queued_reqs=9))], slo, Routing())
    fleet.add()
    fleet.advance(math.inf)
    found = fleet.requests[fleet.requests["state"] == state_arrays.FINISHED]
    ttft, e2e = found["first_at"] - found["at"], found["last_at"] - found["at"]
    gaps = found["output"] - 1
    tpot = np.where(gaps > 0, (found["last_at"] - found["first_at"]) / np.maximum(gaps, 1), 0.0)
    expected = {
        "finished": len(found),
        "rejected": len(load) - len(found),
        "prompt_tokens": found["prompt"].sum(),
        "output_tokens": found["output"].sum(),
        "ttft_within": (ttft <= 0.012).sum(),
        "tpot_within": (tpot <= 0.0046).sum(),
        "e2e_within": (e2e <= 0.4).sum(),
    }
    state = fleet.state(0)
    assert {name: state[name][0] for name in expected} == expected
    assert 0 < expected["ttft_within"] < len(found)
    assert state["tpot_sum"][0] == pytest.approx(tpot.sum())


def test_a_closed_engine_finishes_what_it_has_and_gets_nothing_new() -> None:
    load = drawn_workload([(0.1, 400, 50, 0) for _ in range(50)])
    fleet = EngineFleet(load, [EngineSpec(LAW, SchedulerLimits(16, 2048, 20_000))], SLO, Routing("round-robin"))
    leaving, staying = fleet.add(), fleet.add()
    fleet.advance(1.0)
    fleet.close(leaving)
    before = int((fleet.requests["engine"] == leaving).sum())
    fleet.advance(math.inf)
    assert int((fleet.requests["engine"] == leaving).sum()) == before
    assert fleet.idle_since(leaving) is not None
    assert (fleet.requests["state"] == state_arrays.FINISHED).all()
    assert fleet.idle_since(staying) == fleet.requests["last_at"].max()


def test_a_request_that_meets_no_engine_is_unserved() -> None:
    fleet = EngineFleet(
        drawn_workload([(1.0, 10, 10, 0)] * 3), [EngineSpec(LAW, SchedulerLimits(4, 64, 960))], SLO, Routing()
    )
    fleet.advance(1.5)
    fleet.add()
    fleet.advance(math.inf)
    assert fleet.requests["state"].tolist() == [state_arrays.UNSERVED, state_arrays.FINISHED, state_arrays.FINISHED]


def test_clients_keep_their_connections_until_these_close() -> None:
    load = drawn_workload([(0.01, 10, 2, 0)] * 4000)
    fleet = EngineFleet(load, [EngineSpec(LAW, SchedulerLimits(64, 2048, 20_000))], SLO, Routing(close_share=0.0))
    first = fleet.add()
    fleet.advance(20.0)
    second = fleet.add()
    fleet.advance(25.0)
    assert fleet.state(second)["finished"][0] < 0.5 * fleet.state(first)["finished"][0]
    fleet.close(first)
    fleet.advance(math.inf)
    assert fleet.state(first)["finished"][0] + fleet.state(second)["finished"][0] == len(load)


def test_clients_close_connections_that_were_idle_for_long() -> None:
    load = drawn_workload([(0.01, 10, 2, 0)] * 4000)
    routing = Routing(close_share=0.0, keep_seconds=5.0)
    fleet = EngineFleet(load, [EngineSpec(LAW, SchedulerLimits(64, 2048, 20_000))], SLO, routing)
    first = fleet.add()
    fleet.advance(20.0)
    second = fleet.add()
    before = fleet.state(first)["finished"][0]
    fleet.advance(40.0)
    # A connection is used every ten seconds on average: six in ten have been idle for more than five.
    share = fleet.state(second)["finished"][0] / (fleet.state(first)["finished"][0] - before)
    assert 0.4 < share < 1.1


_WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
from tests.twin import test_twin_engines as here
from holdfast.twin.arrays import compiled
assert not compiled.COMPILES
print(here.digest())
"""


def digest() -> str:
    """What became of some requests that compete for memory, without and with the plugin, as a hash."""
    load = drawn_workload([(0.01, 50 + 37 * number % 400, 1 + number % 30, 0) for number in range(60)])
    kinds, found = [EngineSpec(PRIOR.timer, SchedulerLimits(8, 256, 2000))], hashlib.sha256()
    for told in ((), (Limits(1, Objectives(0.3, 0.01)),)):
        fleet = EngineFleet(load, kinds, SLO, Routing(seed=1), told)
        fleet.add()
        fleet.add()
        fleet.advance(math.inf)
        fleet.check()
        found.update(fleet.requests.tobytes())
        found.update(fleet.state(0).tobytes())
    return found.hexdigest()


def test_where_no_folder_can_be_written_functions_are_compiled_all_the_same() -> None:
    found: dict[str, Any] = {}
    exec("def twice(number):\n    return 2 * number\n", found)
    assert compiled.compiled(found["twice"])(3) == 6


@pytest.mark.slow
def test_without_numba_the_same_comes_out() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_NUMBA], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == digest()
