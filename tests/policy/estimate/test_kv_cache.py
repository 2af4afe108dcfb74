"""The KV cache that requests will take within the lead time, by how it grows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.engine import EngineFacts
from holdfast.domain.signals import SignalState
from holdfast.domain.valid_traffic import judge
from holdfast.policy.decide import decide
from holdfast.policy.estimate.demand import MOST_REPLICAS
from holdfast.policy.estimate.kv_cache import FULL, KvCache, watch_kv_cache
from holdfast.policy.memory import Memory
from tests.builders import NOW, ServiceView, a_snapshot, replicas, service, traffic

KV = {"h100": 100_000.0}
LEAD = 90.0


def followed(*usages: float, every: float = 5.0, **more: float) -> KvCache:
    """What is known after these usages of two engines."""
    memory = KvCache()
    for number, usage in enumerate(usages):
        counts = {"kv_usage": usage, "engines": 2, "running": 400.0, "waiting": 0.0, **more}
        memory = watch_kv_cache(memory, judge(traffic(4.0, **counts)), KV, NOW + every * number)
    return memory


def test_a_cache_that_fills_asks_for_replicas_before_it_is_full() -> None:
    """From a fifth to a half in two minutes: in another minute and a half it is three quarters, if it goes on so."""
    filling = followed(*(0.2 + 0.3 * at / 24 for at in range(25)))
    assert filling.peak_tokens(LEAD) == pytest.approx(0.725 * 200_000.0, rel=0.15)
    assert filling.replicas(LEAD / 9.0, 100_000.0) == 2
    assert filling.replicas(LEAD, 100_000.0) == 3


def test_growth_counts_more_than_what_is_held() -> None:
    """Two caches that will hold as much: the one that grows needs more room."""
    longer = KvCache(stay_seconds=60.0, counted_at=NOW, each_tokens=900.0, usual_tokens=600.0, running=100.0)
    held = replace(longer, tokens=150_000.0, tokens_per_second=0.001)
    growing = replace(longer, tokens=100_000.0, tokens_per_second=50_000.0 / LEAD)
    assert held.peak_tokens(LEAD) == pytest.approx(growing.peak_tokens(LEAD), rel=1e-3)
    assert held.replicas(LEAD, 100_000.0) == 2
    assert growing.replicas(LEAD, 100_000.0) == 4


def test_more_requests_that_are_as_long_as_before_are_the_business_of_the_forecast() -> None:
    """Three times as many run within two minutes; then the same requests hold twice as much."""
    memory = KvCache()
    for at in range(85):
        running = 100.0 + 200.0 * min(1.0, at / 24)
        each = 200.0 if at < 60 else 200.0 + 200.0 * (at - 60) / 24
        counts = {"kv_usage": running * each / 200_000.0, "engines": 2, "running": running, "waiting": 0.0}
        memory = watch_kv_cache(memory, judge(traffic(4.0, **counts)), KV, NOW + 5.0 * at)
        if at < 60:
            assert memory.replicas(LEAD, 100_000.0) == 0
    assert memory.replicas(LEAD, 100_000.0) >= 2


@pytest.mark.parametrize(("running", "longer"), [(4.0, False), (400.0, True)])
def test_of_few_requests_chance_makes_some_hold_more(running: float, longer: bool) -> None:
    seen = KvCache(each_tokens=1_300.0, usual_tokens=1_000.0, running=running)
    assert seen.is_longer is longer


@pytest.mark.parametrize("usage", [0.3, 0.97])
def test_a_cache_that_is_as_full_as_before_asks_for_nothing(usage: float) -> None:
    assert followed(*[usage] * 30).replicas(LEAD, 100_000.0) == 0


def test_a_cache_that_empties_asks_for_nothing() -> None:
    assert followed(*(0.9 - 0.02 * at for at in range(30))).replicas(LEAD, 100_000.0) == 0


def test_the_tokens_of_short_answers_do_not_grow_for_long() -> None:
    """They stay for 10 s: a load that rises at once has all it will have soon."""
    ramp = [0.2 + 0.03 * at for at in range(20)]
    assert followed(*ramp, running=40.0).peak_tokens(LEAD) < 0.8 * followed(*ramp).peak_tokens(LEAD)


def test_what_waits_is_the_business_of_the_forecast_and_behind_a_backlog_nothing_is_known() -> None:
    for usage in (0.9, 0.5):
        calm, waiting, crowd = (followed(*[usage] * 20, waiting=waits) for waits in (0.0, 200.0, 4000.0))
        assert waiting == calm
        assert crowd.counted_at is None
        assert crowd.replicas(LEAD, 100_000.0) == 0


def test_a_backlog_that_new_replicas_take_up_asks_for_no_more_than_it_holds() -> None:
    """Of a played day: after a burst the sixth replica has come, requests hold 10 % more, and the queue shrinks.

    Their queue was counted from a usage of 0.8 on, and so four times as many replicas were asked for.
    """
    told = ((1434.0, 693.0, 0.8935), (1359.0, 721.0, 0.7955), (1261.0, 742.0, 0.8729), (1188.0, 743.0, 0.9026))
    memory = KvCache(usual_tokens=650.0)
    for number, (waiting, running, usage) in enumerate(told):
        counts = {"kv_usage": usage, "engines": 6, "running": running, "waiting": waiting}
        memory = watch_kv_cache(memory, judge(traffic(33.5, **counts)), KV, NOW + 15.0 * number)
    assert memory.is_longer
    assert memory.replicas(LEAD, KV["h100"]) <= 8


def test_without_the_size_of_the_cache_nothing_is_asked_for() -> None:
    seen = judge(traffic(4.0, kv_usage=0.9, engines=2, running=40.0))
    assert watch_kv_cache(KvCache(), seen, {}, NOW) == KvCache()
    assert followed(0.2, 0.4, 0.6).replicas(LEAD, None) == 0


@given(st.floats(), st.floats(0.0, 1e11), st.floats(-1e3, 1e3))
def test_no_report_makes_a_size_that_is_no_number(usage: float, waiting: float, passed: float) -> None:
    seen = judge(traffic(4.0, kv_usage=usage, engines=2, running=1.0, waiting=waiting))
    known = watch_kv_cache(watch_kv_cache(KvCache(), seen, KV, NOW), seen, KV, NOW + passed)
    assert math.isfinite(known.peak_tokens(LEAD))
    assert 0 <= known.replicas(LEAD, 1.0) <= MOST_REPLICAS


def test_the_size_follows_the_cache_with_a_reason_of_its_own() -> None:
    memory, decisions = Memory(), []
    for number in range(40):
        usage = 0.1 + 0.02 * number
        counts = traffic(1.0, kv_usage=usage, engines=1, running=60.0)
        seen = replace(counts, facts=(("h100", EngineFacts(kv_tokens=100_000.0)),))
        now = NOW + 5.0 * number
        view = ServiceView(service(), seen, replicas(1, now=now))
        (decision,), memory = decide(a_snapshot(view, now=now), memory)
        decisions.append(decision)
    raised = next(each for each in decisions if each.verdict.reason == "KVCachePressure")
    assert raised.verdict.replicas > 1
    assert "times the KV cache of a replica within" in raised.verdict.message
    assert 0.1 + 0.02 * decisions.index(raised) < FULL


def test_doubtful_metrics_start_it_anew_and_forget_not_what_is_usual() -> None:
    known = followed(0.2, 0.4, 0.6)
    stale = judge(replace(traffic(4.0, kv_usage=0.9, engines=2), state=SignalState.STALE))
    assert watch_kv_cache(known, stale, KV, NOW + 60.0) == KvCache(usual_tokens=known.usual_tokens)
