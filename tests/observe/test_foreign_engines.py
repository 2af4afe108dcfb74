"""Engines without a pod in this cluster are told, pods that come or go are never taken for such: on a virtual clock."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import SignalState, Traffic
from holdfast.observe.series.client import PrometheusAddress
from holdfast.observe.series.samples import Sample
from holdfast.observe.signals import traffic
from holdfast.observe.signals.foreign_engines import LEAST_TAIL_SECONDS, ForeignEngineTracker, told
from holdfast.observe.signals.prometheus import PrometheusSource
from holdfast.observe.signals.slow_queries import SlowSignals
from tests.fakes import FakePrometheus
from tests.observe.observe_builders import CHAT, NOW, WINDOW, answers, known_queries, ready, request, row, sample

SCRAPE = 15.0
TAIL = LEAST_TAIL_SECONDS + SCRAPE
LOOKBACK_SECONDS = 300.0
DISCOVERY_SECONDS = 10.0
"""Prometheus hears of a pod that is gone, and stops scraping it, within this time."""


def looks(
    strangers: ForeignEngineTracker, seconds: float, *pods: str, reporting: str = "twin-0", since: float = NOW
) -> list[str]:
    """Look every five seconds while an engine is scraped all the time; return what was found at each look."""
    return [
        ",".join(strangers.found(CHAT, pods, {reporting: since + 5.0 * look - 3.0}, since + 5.0 * look))
        for look in range(int(seconds / 5.0) + 1)
    ]


def test_an_engine_without_a_pod_is_told_after_a_while_and_for_as_long_as_it_reports() -> None:
    found = looks(ForeignEngineTracker(SCRAPE), 600.0, "chat-0")
    first = found.index("twin-0")
    assert TAIL < 5.0 * first <= TAIL + 10.0
    assert set(found[first:]) == {"twin-0"}


def test_an_engine_that_falls_silent_is_no_longer_told_once_its_samples_are_stale() -> None:
    strangers = ForeignEngineTracker(SCRAPE)
    last = NOW + 200.0
    assert looks(strangers, 200.0)[-1] == "twin-0"
    assert strangers.found(CHAT, (), {"twin-0": last}, last + WINDOW.stale_seconds - 5.0) == ("twin-0",)
    assert strangers.found(CHAT, (), {"twin-0": last}, last + WINDOW.stale_seconds) == ()


def test_a_pod_that_was_there_at_an_earlier_look_is_never_foreign() -> None:
    strangers = ForeignEngineTracker(SCRAPE)
    strangers.found(CHAT, ["chat-0"], {"chat-0": NOW - 3.0}, NOW)
    assert set(looks(strangers, 600.0, reporting="chat-0", since=NOW + 5.0)) == {""}


def test_what_a_pod_reported_before_it_was_missed_says_nothing_whatever_time_passes() -> None:
    strangers = ForeignEngineTracker(SCRAPE)
    assert not any(strangers.found(CHAT, (), {"chat-0": NOW - 3.0}, NOW + 5.0 * look) for look in range(60))


def test_time_in_which_nobody_looked_is_no_time_in_which_a_pod_was_missed() -> None:
    strangers = ForeignEngineTracker(SCRAPE)
    assert looks(strangers, 0.0) == [""]
    assert looks(strangers, 0.0, since=NOW + 3600.0) == [""]
    assert looks(strangers, 0.0, since=NOW - 3600.0) == [""], "the clock was set back"


def test_services_are_told_apart_by_namespace_and_forgotten_when_they_are_gone() -> None:
    strangers, other = ForeignEngineTracker(SCRAPE), ServiceKey("test", "chat")
    for look in range(40):
        now = NOW + 5.0 * look
        strangers.found(CHAT, ["a"], {"a": now, "twin": now}, now)
        strangers.found(other, ["twin"], {"twin": now}, now)
    now = NOW + 200.0
    assert strangers.found(other, ["twin"], {"twin": now}, now) == ()
    assert strangers.found(CHAT, ["a"], {"a": now, "twin": now}, now) == ("twin",)
    strangers.forget_all_but([other])
    assert strangers.found(CHAT, ["a"], {"a": now, "twin": now}, now) == ()


def judged(strangers: ForeignEngineTracker, now: float, engines: list[Sample], *replicas: Replica) -> Traffic:
    rows = answers(engines=engines)
    return traffic.assemble([request(*replicas)], rows, SlowSignals(), WINDOW, now, strangers)[CHAT]


def test_the_signal_says_who_and_what_to_do_and_is_never_fresh() -> None:
    strangers = ForeignEngineTracker(SCRAPE)
    for look in range(30):
        now = NOW + 5.0 * look
        engines = [sample(now - 3, pod=pod) for pod in ("chat-0", "twin-0", "twin-1")]
        seen = judged(strangers, now, engines, ready("chat-0"))
    assert seen.state is SignalState.FOREIGN
    assert "2 engines report" in seen.detail
    assert "twin-0, twin-1" in seen.detail
    assert "--prometheus-matcher" in seen.detail
    assert dict(seen.by_accelerator)["h100"].engines == 3


async def test_the_source_remembers_from_tick_to_tick_and_forgets_services_that_are_gone() -> None:
    async with FakePrometheus(known_queries()) as fake:
        source = PrometheusSource(PrometheusAddress(fake.url))
        asked, states = [request(ready("chat-0"))], []
        for look in range(26):
            now = NOW + 5.0 * look
            fake.rows["engines"] = [row(now - 3, pod="chat-0"), row(now - 3, pod="twin-0")]
            gone = look == 24
            seen = await source.observe([request(key=ServiceKey("test", "other"))] if gone else asked, now)
            states += [] if gone else [seen[CHAT].state]
        await source.close()
    assert states[0] is SignalState.FRESH
    assert states[-2:] == [SignalState.FOREIGN, SignalState.FRESH]


def test_replicas_that_do_not_report_are_told_first() -> None:
    strangers = ForeignEngineTracker(SCRAPE)
    for look in range(30):
        now = NOW + 5.0 * look
        seen = judged(strangers, now, [sample(now - 3, pod="twin-0")], ready("chat-0"))
    assert (seen.state, seen.detail) == (SignalState.PARTIAL, "1 of 1 ready replica reports no metrics: chat-0")


def test_many_names_are_cut_and_one_is_spoken_of_as_one() -> None:
    assert "4 engines report under the name of this service but are not pods of this cluster: a, b, c, ..." in told(
        ("a", "b", "c", "d")
    )
    assert told(("a",)).startswith("an engine reports")


@dataclass
class Pod:
    """One pod of this cluster: made, scraped from `up` on, gone from the API server, still running a while after."""

    name: str
    made: float
    up: float
    gone: float
    runs_on_seconds: float
    scraped: list[float] = field(default_factory=list)

    def scrape(self, at: float, clock: float) -> None:
        """Prometheus scrapes what it knows of; its clock may be ahead of ours."""
        if self.up <= at < min(self.gone + self.runs_on_seconds, self.gone + DISCOVERY_SECONDS + SCRAPE):
            self.scraped.append(at + clock)

    def newest(self, now: float) -> float | None:
        return max((at for at in self.scraped if now - LOOKBACK_SECONDS < at <= now), default=None)


spans = st.floats(0.0, 400.0)
pods = st.builds(
    lambda name, made, start, life, on: Pod(
        f"chat-{name}", NOW + made, NOW + made + start, NOW + made + start + life, on
    ),
    st.integers(0, 50),
    st.floats(-300.0, 500.0),
    st.floats(0.0, 60.0),
    st.one_of(spans, st.just(math.inf)),
    st.floats(0.0, 120.0),
)
ahead = st.floats(-20.0, 15.0)
late = st.floats(0.0, 40.0)
restarts = st.lists(st.floats(0.0, 600.0), max_size=3)
rests = st.lists(st.tuples(st.floats(0.0, 600.0), st.floats(0.0, 200.0)), max_size=2)


@settings(max_examples=150, deadline=None)
@given(st.lists(pods, max_size=5, unique_by=lambda pod: pod.name), ahead, late, restarts, rests, st.floats(2.0, 20.0))
def test_no_pod_of_this_cluster_is_taken_for_a_foreign_one(
    cluster: list[Pod],
    clock: float,
    watch_straggler: float,
    starts: list[float],
    unseen: list[tuple[float, float]],
    tick: float,
) -> None:
    """Pods come, go, are deleted by force; the operator starts anew, its watch is late, Prometheus is out of reach."""
    for scrape in range(-20, 42):
        for pod in cluster:
            pod.scrape(NOW + SCRAPE * scrape + 1.0, clock)
    strangers, now, pending = ForeignEngineTracker(SCRAPE), NOW, sorted(NOW + at for at in starts)
    while now < NOW + 600.0:
        if pending and now >= pending[0]:
            strangers, pending = ForeignEngineTracker(SCRAPE), pending[1:]
        if not any(NOW + begin <= now < NOW + begin + length for begin, length in unseen):
            known = [pod.name for pod in cluster if pod.made + watch_straggler <= now < pod.gone]
            sampled = {pod.name: at for pod in cluster if (at := pod.newest(now)) is not None}
            assert strangers.found(CHAT, known, sampled, now) == ()
        now += tick


@settings(max_examples=60, deadline=None)
@given(
    st.lists(pods, max_size=3, unique_by=lambda pod: pod.name), ahead, st.floats(2.0, 20.0), st.floats(0.0, 14.9), late
)
def test_a_twin_is_always_found_and_from_then_on_at_every_look(
    cluster: list[Pod], clock: float, tick: float, offset: float, begins: float
) -> None:
    strangers, now = ForeignEngineTracker(SCRAPE), NOW
    known = [pod.name for pod in cluster]
    found_at = None
    while now < NOW + 600.0:
        scraped = math.floor((now - clock - NOW - offset) / SCRAPE) * SCRAPE + NOW + offset + clock
        sampled = {"twin": scraped} if scraped >= NOW + begins else {}
        found = strangers.found(CHAT, known, sampled, now)
        assert found == (("twin",) if found_at is not None else found)
        found_at = now if found and found_at is None else found_at
        now += tick
    assert found_at is not None
    assert found_at <= NOW + begins + TAIL + 3 * SCRAPE + 2 * tick + 20.0


def test_a_replica_of_any_phase_is_a_pod_of_the_service() -> None:
    strangers = ForeignEngineTracker(SCRAPE)
    replicas = [Replica(f"chat-{phase.value}", "h100", phase, created_at=NOW - 600.0) for phase in ReplicaPhase]
    states = set()
    for look in range(40):
        now = NOW + 5.0 * look
        engines = [sample(now - 3, pod=replica.name) for replica in replicas]
        states.add(judged(strangers, now, engines, *replicas).state)
    assert SignalState.FOREIGN not in states
