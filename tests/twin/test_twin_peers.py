"""Other autoscalers' laws, by numbers that were worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.simulate import declare
from holdfast.domain.service import ServiceKey, Slo
from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.twin.peers.aibrix import AibrixApa
from holdfast.twin.peers.behavior import Behavior, Governor, Steps, average_value
from holdfast.twin.peers.dynamo import DynamoLatency, DynamoSla, itl_seconds, ttft_seconds
from holdfast.twin.peers.hpa import Hpa
from holdfast.twin.peers.keda import KedaQueue, KedaSlo, KedaToken, prefill_tokens_per_second
from holdfast.twin.peers.knative import KnativeConcurrency
from holdfast.twin.peers.peer import with_rates
from holdfast.twin.peers.sageserve import SageServe, engine_rps, forecast
from holdfast.twin.peers.wva import WvaSaturation, derived_tokens
from holdfast.twin.pods.peer_metrics import EngineGauges, EngineShape, Sight
from holdfast.twin.policies import POLICIES, make_policy
from holdfast.twin.policy_port import BadPolicy, Policy
from holdfast.twin.runs.run import simulate
from holdfast.twin.scenarios.scenario import Scenario
from tests.twin.twin_builders import scenario_file, small_scenario

KEY = ServiceKey("simulated", "chat")
# A full step of 2,000 prompt tokens takes 10 + 100 = 110 ms; a decode of 1,000 KV tokens adds 1 ms to its step.
LAW = StepLaw(c0=0.010, c1=50e-6, c2=0.0, c3=1e-6, c4=0.0)
SHAPE = EngineShape(kv_tokens=100_000, max_num_seqs=100, max_num_batched_tokens=2_000, timer=LAW)
PEERS = [name for name in POLICIES if name not in ("holdfast", "holdfast-slow", "holdfast-apart", "static")]


def engine(
    running: float = 0.0, waiting: float = 0.0, kv: float = 0.0, queued: float = 0.0, name: str = ""
) -> EngineGauges:
    return EngineGauges(running, waiting, kv, queued, name)


def seen(*engines: EngineGauges, **changes: Any) -> Sight:
    sight = Sight(
        size=len(engines),
        ready=len(engines),
        lowest=1,
        highest=20,
        engines=engines,
        shape=SHAPE,
        slo=Slo(ttft_seconds=1.0, tpot_seconds=0.05, objective=0.99, window_seconds=3600.0),
        prompt_tokens=1_000.0,
        output_tokens=200.0,
    )
    return replace(sight, **changes)


def test_an_average_value_within_a_tenth_of_its_target_changes_nothing() -> None:
    assert average_value(total=21.9, target=5.0, current=4) == 4
    assert average_value(total=22.1, target=5.0, current=4) == 5
    assert average_value(total=0.0, target=5.0, current=4) == 0
    assert [average_value(total, target=1.0, current=10) for total in (8.0, 9.0, 11.0, 12.0)] == [8, 10, 10, 12]


def sizes(governor: Governor, wanted: Sequence[tuple[float, int]], current: int) -> list[int]:
    found = []
    for now, want in wanted:
        current = governor.size(now, current, want)
        found.append(current)
    return found


def test_an_hpa_doubles_or_adds_four_within_fifteen_seconds() -> None:
    assert sizes(Governor(Behavior()), [(0.0, 50), (15.0, 50), (30.0, 50)], 2) == [6, 12, 24]


def test_an_hpa_comes_down_to_the_largest_of_five_minutes() -> None:
    moments = [(0.0, 8), (15.0, 1), (150.0, 3), (299.0, 1), (301.0, 1), (451.0, 1)]
    assert sizes(Governor(Behavior()), moments, 8) == [8, 8, 8, 8, 3, 1]


def test_an_hpa_that_has_just_started_does_not_scale_down() -> None:
    assert sizes(Governor(Behavior()), [(0.0, 1), (299.0, 1), (300.0, 1)], 5) == [5, 5, 1]


def test_one_pod_in_two_minutes_is_one_pod_in_two_minutes() -> None:
    governor = Governor(Behavior(down=Steps(None, 1, 120.0, 0.0)))
    assert sizes(governor, [(0.0, 1), (60.0, 1), (119.0, 1), (121.0, 1)], 5) == [4, 4, 4, 3]


def test_going_up_waits_for_the_least_of_its_window() -> None:
    governor = Governor(Behavior(up=Steps(100.0, 4, 60.0, 30.0)))
    assert sizes(governor, [(0.0, 2), (15.0, 4), (31.0, 4)], 2) == [2, 2, 4]


def test_hpa_counts_who_waits() -> None:
    assert Hpa(waiting=5.0).wanted(KEY, seen(engine(10, 12), engine(10, 9)), 0.0) == math.ceil(21 / 5)


def test_keda_queue_takes_the_larger_of_running_and_waiting() -> None:
    assert KedaQueue().wanted(KEY, seen(engine(40, 0), engine(40, 0)), 0.0) == 5
    assert KedaQueue().wanted(KEY, seen(engine(4, 4), engine(4, 5)), 0.0) == 9
    assert KedaQueue(inflight=32.0).wanted(KEY, seen(engine(4, 4), engine(4, 5)), 0.0) == 5


def test_keda_queue_at_most_doubles_in_fifteen_seconds() -> None:
    assert KedaQueue.behavior is not None
    assert sizes(Governor(KedaQueue.behavior), [(0.0, 9), (15.0, 9), (30.0, 9), (45.0, 9)], 1) == [2, 4, 8, 9]


def test_keda_token_takes_the_larger_of_prompts_and_kv_cache() -> None:
    assert prefill_tokens_per_second(seen(engine())) == pytest.approx(2000 / 0.110)
    # 60,000 tokens at 18,182/s are 3.3 s; of 1 s of TTFT a prompt of 1,000 leaves 0.945 s: four engines.
    assert KedaToken().wanted(KEY, seen(engine(queued=60_000.0)), 0.0) == 4
    assert KedaToken().wanted(KEY, seen(engine(kv=90_000.0), engine(kv=90_000.0)), 0.0) == 3


def test_keda_token_counts_no_prompt_tokens_that_are_cached() -> None:
    # Half of 60,000 tokens are 1.65 s; half a prompt leaves 0.9725 s.
    assert KedaToken().wanted(KEY, seen(engine(queued=60_000.0), cached_share=0.5), 0.0) == 2
    assert KedaToken().wanted(KEY, seen(engine(queued=60_000.0), cached_share=1.0), 0.0) == 0


def test_keda_token_takes_the_shipped_threshold_where_a_prompt_leaves_nothing_of_ttft() -> None:
    long = seen(engine(queued=60_000.0), prompt_tokens=20_000.0)
    assert KedaToken().wanted(KEY, long, 0.0) == math.ceil(60_000 * 0.110 / 2000 / 1.5)


def test_keda_token_stays_within_a_tenth_of_either_target() -> None:
    assert KedaToken().wanted(KEY, seen(engine(kv=87_000.0)), 0.0) == 1
    assert KedaToken().wanted(KEY, seen(engine(kv=89_000.0)), 0.0) == 2


def test_keda_token_adds_one_in_three_minutes_and_removes_one_in_five() -> None:
    assert KedaToken.behavior is not None
    up = [(0.0, 9), (165.0, 9), (180.0, 9), (345.0, 9), (360.0, 9)]
    assert sizes(Governor(KedaToken.behavior), up, 1) == [2, 2, 3, 3, 4]
    down = [(0.0, 5), (15.0, 1), (300.0, 1), (315.0, 1), (600.0, 1), (615.0, 1)]
    assert sizes(Governor(KedaToken.behavior), down, 5) == [5, 5, 4, 4, 3, 3]


def test_keda_slo_sizes_in_proportion_outside_its_band() -> None:
    law = KedaSlo().law
    assert law(0.50, 4, 4) == 4
    assert law(1.10, 4, 4) == 8
    assert law(1.10, 4, 2) == 4
    assert law(0.20, 4, 4) == 2
    assert law(0.0, 4, 4) == 0


def test_keda_slo_takes_the_mean_of_three_and_cuts_at_two() -> None:
    policy, slow = KedaSlo(), seen(engine(), engine(), ttft_p90_seconds=9.0, tpot_p90_seconds=0.01)
    assert policy.wanted(KEY, slow, 0.0) == 2 + math.ceil(2 * (2.0 / 0.55 - 1.0))
    silent = seen(engine(), engine())
    policy.wanted(KEY, silent, 15.0)
    assert policy.wanted(KEY, silent, 30.0) == 2 + math.ceil(2 * (2.0 / 3 / 0.55 - 1.0))


def test_keda_slo_leaves_one_of_ten_to_the_tolerance_of_the_hpa() -> None:
    for replicas, wanted in ((9, 10), (10, 10), (20, 20)):
        assert KedaSlo().law(0.551, replicas, replicas) == replicas + 1
        assert KedaSlo().wanted(KEY, seen(*[engine()] * replicas, ttft_p90_seconds=0.551), 0.0) == wanted


def test_aibrix_at_nine_tenths_of_the_cache_doubles_four_replicas() -> None:
    # Measured on the original: target 0.5, four replicas at 0.9 -> 8, all idle -> 2.
    law = AibrixApa().law
    assert (law(0.9, 4), law(0.0, 4), law(0.54, 4), law(0.40, 4)) == (8, 2, 4, 4)


def test_aibrix_takes_the_mean_of_three_minutes() -> None:
    policy, idle, full = AibrixApa(), seen(engine()), seen(engine(kv=100_000.0))
    for moment in range(0, 180, 10):
        policy.wanted(KEY, idle, float(moment))
    # Nine of eighteen samples are full: a mean of 0.5. The tenth is 0.556, beyond 1.1 x the target.
    assert [policy.wanted(KEY, full, float(moment)) for moment in range(180, 290, 10)] == [1] * 9 + [2, 2]


def test_aibrix_does_not_come_down_within_five_minutes_of_a_change() -> None:
    policy = AibrixApa()
    assert policy.wanted(KEY, seen(engine(kv=90_000.0)), 0.0) == 2
    idle = seen(engine(), engine(), engine(), engine())
    for moment in range(10, 300, 10):
        assert policy.wanted(KEY, idle, float(moment)) >= 4
    assert policy.wanted(KEY, idle, 300.0) == 2


def test_wva_derives_what_an_engine_holds_until_it_sees_a_queue() -> None:
    look = seen(engine())
    # N = min(2,000 x 200 / 1,200, 100) = 100 sequences of 1,000 + 100 tokens, but no more than 80 % of the cache.
    assert derived_tokens(look) == pytest.approx(110_000.0)
    policy = WvaSaturation()
    assert policy.capacity(KEY, look) == 80_000.0
    assert policy.capacity(KEY, seen(engine(waiting=5.0, kv=60_000.0))) == 60_000.0


def test_wva_takes_the_median_engine() -> None:
    policy = WvaSaturation()
    queued = [engine(waiting=5.0, kv=kv) for kv in (40_000.0, 50_000.0, 75_000.0)]
    assert policy.capacity(KEY, seen(*queued)) == 50_000.0
    # Engines without a queue are taken for the mean of what was seen, 55,000.
    assert policy.capacity(KEY, seen(engine(), engine(), engine())) == pytest.approx(55_000.0)


def test_wva_adds_what_is_missing_and_removes_what_is_spare() -> None:
    law = WvaSaturation().law
    # 340,000 / 0.85 = 400,000 tokens are five engines of 80,000; 112,000 / 0.70 = 160,000 are two.
    assert law(340_000.0, 80_000.0, 2, 2) == 5
    assert law(112_000.0, 80_000.0, 4, 4) == 2
    assert law(120_000.0, 80_000.0, 2, 2) == 2
    assert law(0.0, 80_000.0, 3, 3) == 1


def test_wva_counts_starting_engines_but_not_as_spare() -> None:
    law = WvaSaturation().law
    assert law(340_000.0, 80_000.0, 5, 2) == 5
    assert law(112_000.0, 80_000.0, 4, 2) == 4


def test_wva_takes_the_highest_of_each_engine_in_the_last_minute() -> None:
    policy = WvaSaturation()
    calm = seen(engine(kv=10_000.0, name="a"), engine(kv=20_000.0, name="b"))
    # 160,000 tokens in use of engines of 80,000 / 0.85: three, until the minute is over.
    assert policy.wanted(KEY, seen(engine(kv=90_000.0, name="a"), engine(kv=70_000.0, name="b")), 0.0) == 3
    assert policy.wanted(KEY, calm, 45.0) == 3
    assert policy.wanted(KEY, calm, 60.0) == 1


def test_wva_leaves_one_of_ten_to_the_tolerance_of_the_hpa() -> None:
    # 10 x 70,000 tokens / 0.85 are 10.3 engines of 80,000; 9 x 70,000 / 0.85 are 9.3.
    ten, nine = ([engine(kv=70_000.0, name=str(number)) for number in range(count)] for count in (10, 9))
    assert WvaSaturation().wanted(KEY, seen(*ten), 0.0) == 10
    assert WvaSaturation().wanted(KEY, seen(*nine), 0.0) == 10


def test_dynamo_estimates_by_full_steps() -> None:
    look = seen(engine(queued=3_000.0))
    assert ttft_seconds(look, look.engines[0]) == pytest.approx(2 * 0.110)
    full = seen(engine(running=20.0, waiting=9.0, kv=20_000.0, queued=9_000.0))
    # One more decode joins those that run; who waits is no decode yet.
    assert itl_seconds(full, full.engines[0]) == pytest.approx(0.031)


def test_dynamo_computes_no_prompt_tokens_that_are_cached() -> None:
    half = seen(engine(queued=3_000.0), cached_share=0.5)
    assert ttft_seconds(half, half.engines[0]) == pytest.approx(0.110)
    most = seen(engine(queued=39_000.0), cached_share=1.0)
    assert ttft_seconds(most, most.engines[0]) == pytest.approx(0.110)


def test_dynamo_adds_one_only_when_all_workers_are_slow() -> None:
    slow, quick = engine(running=50.0, kv=50_000.0), engine(running=10.0, kv=10_000.0)
    policy = DynamoSla()
    assert policy.wanted(KEY, seen(slow, slow), 0.0) == 3
    assert policy.wanted(KEY, seen(slow, quick), 0.0) == 2
    assert policy.wanted(KEY, seen(quick, quick), 0.0) == 1
    assert policy.wanted(KEY, seen(slow, slow, size=3), 0.0) == 3


def test_dynamo_keeps_a_worker_whose_load_the_others_cannot_take() -> None:
    # With the other's load and one more its step would take 10 + 2 x 15 + 1 = 41 ms; 0.80 x 50 ms are 40 ms.
    busy, less = engine(running=15.0, kv=15_000.0), engine(running=14.0, kv=14_000.0)
    assert DynamoSla().wanted(KEY, seen(busy, busy), 0.0) == 2
    assert DynamoSla().wanted(KEY, seen(less, less), 0.0) == 1
    waits = engine(running=14.0, waiting=1.0, kv=14_000.0, queued=1_000.0)
    assert DynamoSla().wanted(KEY, seen(waits, waits), 0.0) == 2


def test_dynamo_for_latency_adds_one_when_any_worker_is_loaded() -> None:
    policy = DynamoLatency()
    assert policy.wanted(KEY, seen(engine(kv=41_000.0), engine()), 0.0) == 3
    assert policy.wanted(KEY, seen(engine(kv=40_000.0), engine()), 0.0) == 2
    assert policy.wanted(KEY, seen(engine(kv=10_000.0, queued=31_000.0), engine()), 0.0) == 3


def test_dynamo_for_latency_removes_one_only_when_no_worker_is_loaded() -> None:
    policy = DynamoLatency()
    assert policy.wanted(KEY, seen(engine(kv=5_000.0, queued=4_000.0), engine(kv=9_000.0)), 0.0) == 1
    assert policy.wanted(KEY, seen(engine(kv=10_000.0), engine()), 0.0) == 2
    assert policy.wanted(KEY, seen(engine(queued=10_000.0), engine()), 0.0) == 2


def test_dynamo_for_latency_takes_a_short_queue_for_what_it_is_in_the_cache() -> None:
    assert DynamoLatency().wanted(KEY, seen(engine(queued=200.0)), 0.0) == 1


def test_knative_panics_by_the_newest_and_never_down() -> None:
    policy = KnativeConcurrency(concurrency=10.0)
    calm = seen(engine(running=7.0))
    assert policy.wanted(KEY, calm, 0.0) == 1
    assert policy.wanted(KEY, seen(engine(running=70.0)), 5.0) == 10
    assert policy.wanted(KEY, calm, 10.0) == 10
    assert policy.wanted(KEY, calm, 66.0) < 10


def test_sageserve_forecasts_by_the_step_before() -> None:
    # Steps of 4 and 2: half of the last one is expected.
    assert forecast([10.0, 14.0, 16.0]) == pytest.approx(17.0)
    assert forecast([10.0]) == 10.0
    assert forecast([10.0, 10.0, 10.0]) == 10.0


def test_sageserve_profiles_an_engine_by_its_largest_batch() -> None:
    # A batch of b takes 10 + 5 b x 0.05 + 1.1 b ms: 29 sequences in 49.15 ms, 30 are above 50 ms.
    assert engine_rps(seen(engine())) == pytest.approx(29 / (200 * 0.04915))


def test_sageserve_trims_by_memory() -> None:
    policy, half = SageServe(), engine(kv=51_000.0)
    assert policy.wanted(KEY, seen(half, half), 0.0) == 3
    assert policy.wanted(KEY, seen(engine(kv=24_000.0), engine(kv=24_000.0)), 15.0) == 1


def sageserve_sizes(policy: SageServe, moments: range, arrivals_rps: float) -> list[int]:
    calm = seen(engine(kv=30_000.0), engine(kv=30_000.0), arrivals_rps=arrivals_rps)
    return [policy.wanted(KEY, calm, float(moment)) for moment in moments]


def test_sageserve_takes_its_first_five_minutes_for_the_hour_before() -> None:
    policy = SageServe()
    assert set(sageserve_sizes(policy, range(0, 300, 15), 8.0)) == {2}
    # 8 req/s are three engines of 2.95; a peak within the hour changes nothing.
    assert set(sageserve_sizes(policy, range(300, 1800, 15), 8.0)) == {3}
    assert set(sageserve_sizes(policy, range(1800, 3600, 15), 20.0)) == {3}


def test_sageserve_keeps_the_peak_of_the_last_hour() -> None:
    policy = SageServe()
    sageserve_sizes(policy, range(0, 1800, 15), 8.0)
    sageserve_sizes(policy, range(1800, 3600, 15), 20.0)
    # 20 req/s are seven engines of 2.95.
    assert set(sageserve_sizes(policy, range(3600, 7200, 15), 8.0)) == {7}


def test_a_peer_sees_the_share_of_prompts_that_the_prefix_cache_had() -> None:
    counted = AcceleratorTraffic(prompt_tokens=4_000.0, cached_prompt_tokens=1_000.0)
    traffic = Traffic(SignalState.FRESH, by_accelerator=(("l4", counted),))
    assert with_rates(seen(engine()), traffic).cached_share == 0.25
    assert with_rates(seen(engine()), Traffic(SignalState.FRESH)).cached_share == 0.0


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_knob_that_makes_no_sense_is_refused(name: str, value: float) -> None:
    (knob,) = POLICIES[name][0]
    with pytest.raises(BadPolicy, match=knob):
        make_policy(name, {knob: value})


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_runs_in_the_twin_within_its_bounds(name: str, tmp_path: Path) -> None:
    content = small_scenario()
    content["services"][0]["workload"]["arrivals"]["poisson"] = [{"at": "0s", "rps": 3}, {"at": "60s", "rps": 60}]
    content["services"][0]["spec"]["scaling"] = {"min": 1, "max": 3}
    path = scenario_file(tmp_path, content)
    scenario = Scenario.read(path)
    declared = [declare(scenario, each, path, tmp_path, 1) for each in scenario.services]
    policy: Policy = make_policy(name, {})
    run = simulate(scenario, declared, policy, 1)
    assert run.policy == name
    assert all(1 <= change.replicas <= 3 for change in run.changes)
    run.services[0].fleet.check()
