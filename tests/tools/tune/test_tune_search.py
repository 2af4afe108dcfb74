"""The search for limits: it finds the best with few trials, whatever the model believes, and ends."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.tools.tune.engine_port import TrialRequests, UnusableTrial, enough
from holdfast.tools.tune.race import Race, interval
from holdfast.tools.tune.search import STEP, LimitsSearch, TuningResult
from holdfast.tools.tune.setting import Setting, grid
from holdfast.twin.replica.capacity import LengthPairs
from tests.fakes import EngineOfLittleMemory, EngineWithoutResult, FakeEngine

MOST = Setting(256, 2048)
SETTINGS = grid(MOST)
REQUESTS = TrialRequests(LengthPairs(np.full(4, 100), np.full(4, 10)), 50)
TRUTH = {each: 4.0 + 3.0 * math.exp(-(math.log2(each.max_num_batched_tokens / 1024) ** 2)) for each in SETTINGS}


def search(engine: FakeEngine, more: tuple[Setting, ...] = (), **limits: float) -> TuningResult:
    return asyncio.run(LimitsSearch(engine, engine, REQUESTS, **limits).tune(SETTINGS, more))  # type: ignore[arg-type]


def test_the_grid_holds_the_powers_of_two_below_what_the_engine_takes_and_itself() -> None:
    found = grid(Setting(100, 1000))
    assert {each.max_num_seqs for each in found} == {100, 64, 32, 16}
    assert {each.max_num_batched_tokens for each in found} == {1000, 512, 256}
    assert all(each.max_num_seqs <= each.max_num_batched_tokens for each in grid(Setting(1024, 1024)))


def test_a_model_that_is_right_needs_a_trial_and_one_that_confirms_it() -> None:
    engine = FakeEngine(TRUTH, TRUTH)
    found = search(engine)
    assert found.best is not None
    assert found.confirmed
    assert TRUTH[found.best] == max(TRUTH.values())
    assert found.rate_rps <= TRUTH[found.best] <= (1.0 + 2.0 * STEP) * found.rate_rps
    assert len(found.trials) == 2


@given(st.floats(0.2, 5.0), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_a_model_that_is_wrong_by_one_factor_and_learns_it_finds_the_best(factor: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    carries = {each: float(draw.uniform(2.0, 8.0)) for each in SETTINGS}
    engine = FakeEngine(carries, {each: factor * rate for each, rate in carries.items()}, learns=1.0)
    found = search(engine)
    assert found.best is not None
    assert carries[found.best] >= max(carries.values()) / (1.0 + STEP) - 1e-9
    assert found.rate_rps <= carries[found.best]
    assert len(found.trials) <= 3


def test_a_miss_where_nearly_all_was_good_is_followed_by_a_rate_little_below_whatever_the_model_says() -> None:
    def stride(good_beyond: float) -> float:
        engine = FakeEngine(TRUTH, {each: 1.25 * rate for each, rate in TRUTH.items()}, learns=-1.0)
        engine.good_beyond = good_beyond
        first, second = asyncio.run(LimitsSearch(engine, engine, REQUESTS, most_trials=2).tune([MOST])).trials[:2]
        assert not first.held
        return second.rate_rps / first.rate_rps

    assert stride(0.0) == pytest.approx(0.8, abs=0.05), "as far as the model is off"
    assert stride(0.9) == pytest.approx(0.9, abs=0.03)
    assert stride(1.0) < 0.95


def test_requests_that_are_bad_at_any_rate_do_not_hold_the_search_up() -> None:
    engine = FakeEngine(dict.fromkeys(SETTINGS, 1.0), dict.fromkeys(SETTINGS, 10.0), learns=-0.5)
    engine.good_beyond = 0.94
    found = asyncio.run(LimitsSearch(engine, engine, REQUESTS).tune([MOST]))
    assert found.best is not None
    assert len(found.trials) < 15


@given(st.lists(st.floats(-0.1, 0.1), min_size=len(SETTINGS), max_size=len(SETTINGS)))
@settings(max_examples=40, deadline=None)
def test_a_model_that_knows_how_far_it_is_off_finds_the_best_that_it_does_not_put_first(wrong: list[float]) -> None:
    engine = FakeEngine(TRUTH, {each: TRUTH[each] * math.exp(off) for each, off in zip(SETTINGS, wrong, strict=True)})
    engine.doubt = 0.25
    found = search(engine)
    assert found.best is not None
    assert TRUTH[found.best] >= 0.94 * max(TRUTH.values())


@given(st.lists(st.floats(0.0, 1e3), min_size=len(SETTINGS), max_size=len(SETTINGS)), st.floats(1e-3, 1e3))
@settings(max_examples=40, deadline=None)
def test_a_search_ends_and_never_tells_more_than_held_whatever_the_model_says(
    carried: list[float], believed: float
) -> None:
    carries = dict(zip(SETTINGS, carried, strict=True))
    engine = FakeEngine(carries, dict.fromkeys(SETTINGS, believed))
    engine.idle_is_good = any(carried)
    found = search(engine)
    assert len(found.trials) <= 60 + 3
    assert len(engine.rates) == len(set(engine.rates)) + found.confirmed, "no trial is made twice, but to confirm"
    if found.best is not None:
        assert 0.0 < found.rate_rps <= carries[found.best]


def test_what_an_idle_engine_misses_is_told_after_few_trials() -> None:
    engine = FakeEngine(dict.fromkeys(SETTINGS, 0.0), dict.fromkeys(SETTINGS, 3.0))
    engine.idle_is_good = False
    found = search(engine)
    assert (found.best, found.rate_rps, len(found.trials)) == (None, 0.0, 4)
    assert found.alone is not None
    assert found.seconds == 45.0


def test_more_memory_is_tried_only_where_the_cache_is_what_lacks() -> None:
    more = tuple(Setting(each.max_num_seqs, each.max_num_batched_tokens, 0.95) for each in SETTINGS)
    carries = TRUTH | {each: 10.0 for each in more}
    for full, expected in ((False, None), (True, 0.95)):
        found = search(FakeEngine(carries, carries, full=full), more)
        assert found.best is not None
        assert found.best.gpu_memory_utilization == expected
    assert sum(tried.setting.gpu_memory_utilization is not None for tried in found.trials) <= 6


def test_memory_with_which_the_engine_does_not_start_loses_nothing_that_was_found() -> None:
    more = tuple(Setting(each.max_num_seqs, each.max_num_batched_tokens, 0.95) for each in SETTINGS)
    carries = TRUTH | {each: 10.0 for each in more}
    found = search(EngineOfLittleMemory(carries, carries, full=True), more)
    assert found.best is not None
    assert found.confirmed
    assert TRUTH[found.best] == max(TRUTH.values())
    assert found.ended_early == "CUDA out of memory"


def test_a_client_that_stalls_once_loses_nothing_that_was_found() -> None:
    believed = {each: 0.5 * rate for each, rate in TRUTH.items()}
    found = search(EngineWithoutResult(TRUTH, believed, learns=1.0))
    assert found.best is not None
    assert found.confirmed
    assert found.ended_early == "refused at 9 req/s"
    assert search(EngineWithoutResult(TRUTH, TRUTH)).confirmed, "what was refused is sent again"
    with pytest.raises(UnusableTrial):
        search(EngineWithoutResult(dict.fromkeys(TRUTH, 0.0), TRUTH))


def test_what_could_not_be_confirmed_is_told_as_such_and_stands() -> None:
    engine = EngineWithoutResult(TRUTH, TRUTH)
    engine.also = (3, 4)
    found = search(engine)
    assert found.best is not None
    assert not found.confirmed
    assert (found.rate_rps, found.ended_early) == (found.trials[0].rate_rps, "refused at 9 req/s")


def test_time_and_trials_that_run_out_are_told() -> None:
    believed = {each: 0.5 * rate for each, rate in TRUTH.items()}
    found = search(FakeEngine(TRUTH, believed, learns=1.0), most_trials=1)
    assert found.exhausted
    assert found.best is not None
    assert search(FakeEngine(TRUTH, believed, learns=1.0), most_seconds=5.0).exhausted
    assert not search(FakeEngine(TRUTH, TRUTH)).exhausted


async def test_a_search_that_waits_for_nothing_can_be_ended_between_two_trials() -> None:
    engine = FakeEngine(TRUTH, {each: 3.0 * rate for each, rate in TRUTH.items()})
    searching = asyncio.create_task(LimitsSearch(engine, engine, REQUESTS).tune(SETTINGS))
    while not engine.rates:
        await asyncio.sleep(0)
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    assert len(engine.rates) == 1


@given(st.lists(st.booleans(), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0]))
@settings(max_examples=100, deadline=None)
def test_a_race_is_lost_only_by_too_many_bad_ones(goods: list[bool], objective: float) -> None:
    race = Race(len(goods), objective)
    for arrived, good in enumerate(goods, start=1):
        if not good and race.missed(arrived):
            assert race.bad > race.allowed or race.bad / arrived > 1.0 - objective
            break
    else:
        assert race.held
        assert race.bad <= (1.0 - objective) * len(goods) + 1e-6


@pytest.mark.parametrize(("count", "total"), [(0, 0), (0, 10), (10, 10), (3, 1000)])
def test_an_interval_holds_the_share(count: int, total: int) -> None:
    low, high = interval(count, total)
    assert 0.0 <= low <= (count / total if total else 0.5) <= high <= 1.0


def test_stricter_objectives_count_more_requests() -> None:
    assert [enough(share) for share in (0.5, 0.95, 0.99, 1.0)] == [200, 200, 400, 2000]


def test_the_same_requests_come_at_any_rate_and_others_to_confirm() -> None:
    slow, fast, others = REQUESTS.at(1.0, 0.0), REQUESTS.at(4.0, 0.0), REQUESTS.others().at(1.0, 0.0)
    assert np.allclose(slow.requests.at, 4.0 * fast.requests.at)
    assert not np.allclose(slow.requests.at, others.requests.at)
    assert (slow.counted, slow.first) == (50, 0)


def test_a_load_begins_with_those_that_would_be_in_the_engine_by_then() -> None:
    found = REQUESTS.lasting(40.0).at(10.0, 4.0)
    under_way, rest = found.requests.output_tokens[:40], found.requests.output_tokens[40:]
    assert (found.first, found.counted) == (40 + 20, 100)
    assert (found.requests.at[:40] == 0.0).all()
    assert (found.requests.prompt_tokens[:40] == 100 // 2).all(), "they must not hold up those that count"
    assert 1 <= under_way.min() < under_way.max() <= 10 == rest.min()
