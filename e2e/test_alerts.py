"""Alerts over exactly known series, played by promtool: what fires, when, and what stays quiet.

Needs `promtool` only: no cluster and no Prometheus that runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.rules_world import CHAT, Value, World, between, conditions, counted, led, of_chat, since, waits
from holdfast.monitoring import series
from holdfast.monitoring.alerts import alerts

FAST, SLOW = "HoldfastErrorBudgetFastBurn", "HoldfastErrorBudgetSlowBurn"


def burning(tier: str) -> Callable[[Mapping[str, Any]], bool]:
    """The rules between what is recorded of requests and the fast alert of one tier."""

    def wanted(rule: Mapping[str, Any]) -> bool:
        labels = rule.get("labels", {})
        if rule.get("record") in (series.BURN_LIMIT, series.CLASS_OBJECTIVE, series.CLASS_JUDGED, series.CLASS_BAD):
            return True
        mine = (series.TIERED_BAD, series.TIERED_JUDGED, FAST)
        return labels.get("tier") == tier and rule.get("record", rule.get("alert")) in mine

    return wanted


@pytest.fixture
def world() -> World:
    """A world in which an operator leads and ticks."""
    return led()


def test_a_budget_that_burns_fast_calls_somebody_within_minutes(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.judged("chat", 10.0, since(30.0, 0.2))
    world.fires(29.5)
    world.fires(35.0, (FAST, "chat"))
    world.play(tmp_path)


def test_a_budget_that_burns_slowly_is_no_matter_of_minutes(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.judged("chat", 10.0, since(30.0, 0.02))
    world.fires(40.0)
    world.fires(70.0, (SLOW, "chat"))
    world.play(tmp_path)


def test_a_budget_that_is_spent_as_it_should_be_calls_nobody(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.judged("chat", 10.0, lambda _: 0.009)
    for minute in (20.0, 50.0, 79.0):
        world.fires(minute)
    world.play(tmp_path)


def test_an_alert_ends_when_the_burning_does(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.judged("chat", 10.0, lambda at: 0.5 if 30.0 <= at < 40.0 else 0.0)
    world.fires(39.0, (FAST, "chat"), (SLOW, "chat"))
    world.fires(46.0)
    world.play(tmp_path)


def test_few_bad_requests_call_nobody_however_large_their_share(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.judged("chat", 0.01, lambda _: 0.2)
    world.fires(60.0)
    world.play(tmp_path)


def test_requests_that_a_prefill_pool_fails_burn_the_budget_of_its_service(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.judged("chat", 10.0, lambda _: 0.0)
    pool = world.judged("chat.prefill", 0.0, lambda _: 0.0)
    bad = counted(lambda at: 3.0 if at >= 30.0 else 0.0)
    world.add("holdfast:requests_bad_total", pool | {"cause": "error"}, bad)
    world.fires(29.5)
    world.fires(35.0, (FAST, "chat"))
    world.play(tmp_path)


def test_each_service_is_judged_by_its_own_objective_and_window(world: World, tmp_path: Path) -> None:
    for name, objective, window in (("strict", 0.999, 3600.0), ("lax", 0.9, 3600.0), ("long", 0.99, 30 * 86400.0)):
        world.service(name, objective, window)
        world.judged(name, 10.0, since(30.0, 0.05))
    world.fires(50.0, (FAST, "strict"), (SLOW, "strict"), (SLOW, "long"))
    world.expect(
        50.0,
        f"count by (tier) ({series.of(series.TIERED_JUDGED)})",
        ('{tier="1h"}', 2.0),
        ('{tier="30d"}', 1.0),
    )
    world.play(tmp_path)


def test_each_class_is_alarmed_by_its_own_objective(world: World, tmp_path: Path) -> None:
    """The same share of bad requests is a fast burn of a strict class, and none of a lax one."""
    world.service("chat", 0.99)
    for name, objective in (("", 0.99), ("premium", 0.999), ("bulk", 0.9)):
        world.told("slo_class_objective_ratio", objective, "chat", **{"class": name})
        world.told("slo_class_budget_remaining_ratio", -1.0 if name == "premium" else 0.5, "chat", **{"class": name})
    labels = world.judged("chat", 10.0, lambda _: 0.0)
    for name in ("premium", "bulk"):
        bad = counted(lambda at: 0.5 if at >= 30.0 else 0.0)
        world.add("holdfast:requests_bad_total", labels | {"cause": "ttft", "class": name}, bad)
        world.add("holdfast:requests_good_total", labels | {"class": name}, counted(lambda _: 9.5))
    firing = 'count by (alertname, class) (ALERTS{alertstate="firing", holdfast_service="chat"})'
    alarmed = ((f'{{alertname="{name}", class="premium"}}', 1.0) for name in (FAST, SLOW, "HoldfastSloMissed"))
    world.expect(50.0, firing, *alarmed)
    world.play(tmp_path)


def test_an_objective_that_allows_much_can_still_be_missed_loudly(world: World, tmp_path: Path) -> None:
    world.service("chat", objective=0.51)
    world.judged("chat", 10.0, since(30.0, 0.9))
    world.fires(55.0, (FAST, "chat"), (SLOW, "chat"))
    world.play(tmp_path)


def seen_from(minute: float, share: float, until: float = 1e9) -> Value:
    """A share of bad requests as a rate over two minutes shows it."""
    return lambda at: share * (min(1.0, max(0.0, (at - minute) / 2.0)) - min(1.0, max(0.0, (at - until) / 2.0)))


@pytest.mark.parametrize(
    ("window", "tier", "hours", "still"),
    # Ten minutes are a quarter of what 99.9 % allow in 30 days: that is told until an hour has passed.
    [(3600.0, "1h", 1, ()), (86400.0, "1d", 1, ()), (30 * 86400.0, "30d", 13, ("always",))],
    ids=["1h", "1d", "30d"],
)
def test_a_total_outage_calls_somebody_within_minutes_whatever_the_window_and_the_objective(
    window: float, tier: str, hours: int, still: tuple[str, ...], tmp_path: Path
) -> None:
    world, begins = World(minutes=60 * hours + 30), 60.0 * hours
    objectives = {"often": 0.9, "mostly": 0.99, "always": 0.999}
    for name, objective in objectives.items():
        world.recorded(name, objective, window, seen_from(begins, 1.0, begins + 10.0))
    world.calls(begins, FAST)
    world.calls(begins + 6.0, FAST, *objectives)
    world.calls(begins + 20.0, FAST, *still)
    world.play(tmp_path, burning(tier))


def test_trouble_in_a_long_window_calls_somebody_by_what_it_costs(tmp_path: Path) -> None:
    world, begins = World(minutes=60 * 14), 60.0 * 13 - 10.0
    for name, share, lasts in (("spike", 0.3, 10.0), ("half", 0.5, 60.0), ("little", 0.02, 60.0)):
        world.recorded(name, 0.99, 30 * 86400.0, seen_from(begins, share, begins + lasts))
    world.calls(begins + 10.0, FAST)
    world.calls(begins + 20.0, FAST, "half")  # 14.4 % of an hour's requests
    world.calls(begins + 59.0, FAST, "half")
    world.play(tmp_path, burning("30d"))


def test_objectives_outlive_an_operator_that_is_gone_for_a_while(world: World, tmp_path: Path) -> None:
    gone = world.minutes / 2
    for name, value in (("objective_ratio", 0.99), ("window_seconds", 3600.0)):
        world.told(f"slo_{name}", lambda at, value=value: value if at < gone else None, "chat")
    world.judged("chat", 10.0, since(gone, 0.3, 0.0))
    world.fires(gone + 10.0, (FAST, "chat"), (SLOW, "chat"))
    world.play(tmp_path)


def test_a_service_that_serves_nobody_is_told_though_its_reasons_change(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.told("service_replicas", 2.0, "chat", accelerator="h100", state="desired")
    conditions(
        world, "Ready", (0.0, 30.0, "True", "Serving"), (30.0, 36.0, "False", "EngineFailing"),
        (36.0, 44.0, "False", "ImagePullFailing"), (44.0, 80.0, "True", "ServingAgain"),
    )  # fmt: skip
    world.fires(38.0)
    world.fires(43.0, ("HoldfastServiceDown", "chat"))
    world.fires(50.0)
    world.play(tmp_path)


def test_a_prefill_pool_without_a_ready_engine_is_told_and_its_service_is_not_down(
    world: World, tmp_path: Path
) -> None:
    """Once the replicas are gone as well, the service is down after its time."""
    world.service("chat")
    world.told("service_replicas", 1.0, "chat", accelerator="h100", state="desired")
    conditions(
        world, "Ready", (0.0, 20.0, "True", "Serving"), (20.0, 45.0, "False", "PrefillNotReady"),
        (45.0, 70.0, "False", "NoReplicas"), (70.0, 80.0, "True", "ServingAgain"),
    )  # fmt: skip
    world.fires(28.0)
    for minute in (32.0, 44.0):
        world.fires(minute, ("HoldfastPrefillDown", "chat"))
    world.fires(52.0)
    world.fires(58.0, ("HoldfastServiceDown", "chat"))
    world.play(tmp_path)


def test_a_new_service_and_one_without_replicas_are_not_down(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.told("service_replicas", 0.0, "chat", accelerator="h100", state="desired")
    conditions(world, "Ready", (0.0, 80.0, "False", "NoReplicas"))
    world.fires(60.0)
    world.play(tmp_path)


@pytest.mark.parametrize(
    ("kind", "status", "reason", "alert"),
    [
        ("MetricsAvailable", "False", "MetricsMissing", "HoldfastMetricsMissing"),
        ("CapacityAvailable", "False", "InsufficientGPUs", "HoldfastCapacityLimited"),
        ("SLOMet", "False", "CapacityLimited", "HoldfastCapacityLimited"),
        ("SLOMet", "False", "BudgetLimited", "HoldfastSizeLimited"),
        ("SLOMet", "False", "SLOInfeasible", "HoldfastObjectiveInfeasible"),
        ("Ready", "True", "EngineHung", "HoldfastEngineHung"),
        ("Ready", "True", "EngineErrors", "HoldfastEngineErrors"),
        ("Ready", "True", "EngineLagging", "HoldfastEngineLagging"),
        ("Stalled", "True", "ApplyFailed", "HoldfastStalled"),
    ],
)
def test_conditions_that_last_are_told(
    world: World, tmp_path: Path, kind: str, status: str, reason: str, alert: str
) -> None:
    world.service("chat")
    healthy = "False" if kind == "Stalled" else "True"
    conditions(world, kind, (0.0, 20.0, healthy, "Fine"), (20.0, 80.0, status, reason))
    world.fires(21.0)
    world.fires(40.0, (alert, "chat"))
    world.play(tmp_path)


def waking(world: World, until: float, cold_start_seconds: float | None = 900.0, holding: bool = True) -> None:
    """A service that is woken, or loses its only replica, at minute 20, and is Ready again at minute `until`."""
    world.service("chat")
    world.told("service_replicas", 1.0, "chat", accelerator="h100", state="desired")
    if cold_start_seconds is not None:
        world.told("service_cold_start_seconds", cold_start_seconds, "chat")
    if holding:
        world.told("service_holding", lambda at: float(at < until), "chat")
    conditions(
        world, "Ready", (0.0, 20.0, "True", "Idle"), (20.0, until, "False", "NoReplicas"),
        (until, 200.0, "True", "Serving"),
    )  # fmt: skip
    conditions(
        world, "MetricsAvailable", (0.0, 20.0, "True", "MetricsFresh"),
        (20.0, until + 2.0, "False", "MetricsMissing"), (until + 2.0, 200.0, "True", "FreshAgain"),
    )  # fmt: skip


def test_a_wake_up_that_takes_as_long_as_it_always_does_calls_nobody(world: World, tmp_path: Path) -> None:
    waking(world, 45.0)
    waits(world, between(20.5, 45.0, 20.5))
    for minute in (32.0, 44.0, 46.5, 55.0):
        world.fires(minute)
    world.play(tmp_path)


def test_a_wake_up_that_hangs_calls_somebody_when_it_should_be_over(world: World, tmp_path: Path) -> None:
    waking(world, 500.0)
    waits(world, between(20.5, 500.0, 20.5))
    never = ("HoldfastReplicasNeverReady", "chat")
    world.fires(54.0, never)
    world.fires(58.0, never, ("HoldfastServiceDown", "chat"))
    world.fires(68.0, never, ("HoldfastServiceDown", "chat"), ("HoldfastMetricsMissing", "chat"))
    world.play(tmp_path)


def test_the_first_start_that_anybody_saw_may_take_as_long_as_a_start_may(world: World, tmp_path: Path) -> None:
    waking(world, 50.0, cold_start_seconds=None)
    waits(world, between(20.5, 50.0, 20.5))
    world.fires(49.0)
    world.play(tmp_path)


def test_a_wake_up_that_fails_is_not_waited_for(world: World, tmp_path: Path) -> None:
    waking(world, 500.0)
    waits(world, between(20.5, 24.0, 20.5))
    waits(world, between(24.0, 500.0, 20.5), "failing")
    world.calls(33.0, "HoldfastServiceDown", "chat")
    world.play(tmp_path)


def test_a_wake_up_that_begins_again_and_again_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    world = led(160)
    waking(world, 500.0)
    waits(world, lambda at: at - at % 10.0 if at >= 20.0 else None)
    world.fires(130.0)
    world.calls(144.0, "HoldfastServiceDown", "chat")
    world.calls(144.0, "HoldfastMetricsMissing", "chat")
    world.play(tmp_path)


def test_a_service_whose_requests_nobody_holds_is_down_while_its_replica_starts(world: World, tmp_path: Path) -> None:
    waking(world, 500.0, holding=False)
    waits(world, between(20.5, 500.0, 20.5))
    world.calls(33.0, "HoldfastServiceDown", "chat")
    world.play(tmp_path)


def test_replicas_that_never_become_ready_are_told_by_what_they_wait_for(world: World, tmp_path: Path) -> None:
    world.service("chat")
    for accelerator, begin in (("h100", 0.0), ("l40s", 20.0)):
        waits(world, between(begin, 80.0, begin), "unschedulable", accelerator)
    firing = series.of("ALERTS", alertname="HoldfastReplicasNeverReady", alertstate="firing")
    told = f"count by (holdfast_service, holdfast_accelerator, state) ({firing})"
    labels = '{{holdfast_service="chat", holdfast_accelerator="{}", state="unschedulable"}}'
    world.fires(29.0)
    world.expect(40.0, told, (labels.format("h100"), 1.0))
    world.expect(60.0, told, (labels.format("h100"), 1.0), (labels.format("l40s"), 1.0))
    world.play(tmp_path)


def test_replicas_that_start_one_after_the_other_all_become_ready(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.told("service_replicas", 1.0, "chat", accelerator="h100", state="starting")
    waits(world, lambda at: at - at % 5.0)
    world.fires(70.0)
    world.play(tmp_path)


def test_a_replica_that_starts_and_fails_in_turns_is_never_ready(world: World, tmp_path: Path) -> None:
    world.service("chat")
    waits(world, lambda at: 0.0 if at % 6.0 < 3.0 else None)
    waits(world, lambda at: 0.0 if at % 6.0 >= 3.0 else None, "failing")
    for minute in (38.5, 41.5):
        world.calls(minute, "HoldfastReplicasNeverReady", "chat")
    world.play(tmp_path)


def test_a_model_that_always_starts_slowly_is_given_the_time(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.told("service_cold_start_seconds", 1500.0, "chat")
    waits(world, lambda _: 0.0)
    world.fires(49.0)
    world.fires(53.0, ("HoldfastReplicasNeverReady", "chat"))
    world.play(tmp_path)


def test_a_model_that_was_given_an_hour_to_start_is_given_it(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.told("service_startup_timeout_seconds", 3600.0, "chat")
    waits(world, lambda _: 0.0)
    world.fires(59.0)
    world.fires(63.0, ("HoldfastReplicasNeverReady", "chat"))
    world.play(tmp_path)


def test_requests_that_an_activator_turned_away_are_told(world: World, tmp_path: Path) -> None:
    for name, many in (("chat", 3.0), ("crowd", 700.0), ("held", 0.0)):
        world.service(name)
        labels = {"namespace": "prod", "holdfast_service": name, "pod": f"{name}-activator"}
        for outcome, total in (("turned_away", many), ("forwarded", 50.0)):
            gained = lambda at, total=total: total if at >= 30.0 else 0.0  # noqa: E731
            world.add("holdfast_activator_requests_total", labels | {"outcome": outcome}, gained)
    world.fires(29.0)
    world.fires(31.0, ("HoldfastRequestsTurnedAway", "chat"), ("HoldfastRequestsTurnedAway", "crowd"))
    severities = f"count by (severity) ({series.of('ALERTS', alertname='HoldfastRequestsTurnedAway')})"
    world.expect(31.0, severities, ('{severity="warning"}', 1.0), ('{severity="critical"}', 1.0))
    world.fires(45.0)
    world.play(tmp_path)


def test_an_objective_that_stays_missed_over_its_window_is_told(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.told("slo_budget_remaining_ratio", lambda at: -1.0 if 20.0 <= at < 50.0 else 0.5, "chat")
    world.fires(34.0)
    world.fires(37.0, ("HoldfastSloMissed", "chat"))
    world.fires(52.0)
    world.play(tmp_path)


def test_a_service_that_is_pinned_for_a_day_is_told(tmp_path: Path) -> None:
    world = World(minutes=60 * 24 + 20)
    conditions(world, "ScalingActive", (0.0, 10.0, "True", "Scaling"), (10.0, 1e9, "False", "Pinned"))
    world.calls(60.0 * 24, "HoldfastPinned")
    world.calls(60.0 * 24 + 12, "HoldfastPinned", "chat")
    world.play(tmp_path, lambda rule: rule.get("record") == series.CONDITION or rule.get("alert") == "HoldfastPinned")


def test_a_pin_that_the_applied_manifest_does_not_set_is_told_after_ten_minutes(tmp_path: Path) -> None:
    world = World(minutes=30)
    turns = (0.0, 10.0, "True", "Scaling"), (10.0, 1e9, "False", "PinnedOutsideManifest")
    conditions(world, "ScalingActive", *turns)
    world.calls(18.0, "HoldfastPinnedOutsideManifest")
    world.calls(22.0, "HoldfastPinnedOutsideManifest", "chat")
    world.play(tmp_path, lambda rule: rule.get("record") == series.CONDITION or "Pinned" in rule.get("alert", ""))


def test_engines_whose_fast_loop_turned_itself_off_are_told(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.judged("chat", 10.0, lambda _: 0.0, "well")
    labels = world.engine("chat", "off")
    world.add("holdfast:plugin_info", labels | {"mode": "active"}, between(0.0, 20.0, 1.0))
    world.add("holdfast:plugin_info", labels | {"mode": "off"}, between(20.0, 80.0, 1.0))
    world.fires(29.0)
    world.fires(32.0, ("HoldfastFastLoopOff", "chat"))
    world.expect(32.0, of_chat(series.PLUGINS_OFF), (CHAT, 1.0))
    world.play(tmp_path)


def test_ticks_that_are_slow_are_told_once_one_in_a_hundred_is(tmp_path: Path) -> None:
    world, scraped = World(), {"namespace": "system", "pod": "a"}
    slow = since(20.0, 0.05, before=0.005)
    world.add("holdfast_leader", scraped, lambda _: 1.0)
    world.add("holdfast_tick_seconds_count", scraped, counted(lambda _: 0.2))
    for edge, all_of_them in (("0.1", False), ("5.0", False), ("10.0", True), ("+Inf", True)):
        told = lambda at, whole=all_of_them: 0.2 * (1.0 if whole else 1.0 - slow(at))  # noqa: E731
        world.add("holdfast_tick_seconds_bucket", scraped | {"le": edge}, counted(told))
    world.fires(34.0)
    world.fires(40.0, ("HoldfastTicksSlow", ""))
    world.play(tmp_path)


def test_an_operator_that_keeps_failing_is_told_and_one_that_fails_now_and_then_is_not(
    world: World, tmp_path: Path
) -> None:
    scraped = {"namespace": "holdfast-system", "pod": "holdfast-0", "phase": "act"}
    world.add("holdfast_errors_total", scraped, counted(lambda at: (30.0 if at >= 20.0 else 5.0) / 900.0))
    for minute in (19.0, 26.0):
        world.fires(minute)
    world.fires(35.0, ("HoldfastErrors", ""))
    world.play(tmp_path)


def test_every_alert_is_played_here() -> None:
    played = Path(__file__).read_text(encoding="utf-8")
    assert {alert.name for alert in alerts()} <= set(re.findall(r'"(Holdfast\w+)"', played))


def test_engines_that_the_operator_does_not_know_are_told(world: World, tmp_path: Path) -> None:
    world.engine("orphan")
    world.fires(30.0, ("HoldfastServiceUnknown", ""))
    world.play(tmp_path)


def test_a_pod_that_names_hundreds_of_services_raises_one_alert(world: World, tmp_path: Path) -> None:
    world.service("chat")
    for number in range(304):
        world.engine(f"forged-{number}")
    world.fires(30.0, ("HoldfastServiceUnknown", ""))
    world.play(tmp_path)


def test_nobody_leading_and_nobody_there_are_told_apart(tmp_path: Path) -> None:
    world = World()

    def leads(at: float) -> float | None:
        return 1.0 if at < 10 else 0.0 if at < 40 else None

    world.add("holdfast_leader", {"namespace": "system", "pod": "a"}, leads)
    world.fires(9.0)
    world.fires(20.0, ("HoldfastNobodyLeads", ""))
    world.fires(60.0, ("HoldfastAbsent", ""))
    world.play(tmp_path)


def test_a_leader_that_decides_nothing_is_told(tmp_path: Path) -> None:
    world = World()
    world.add("holdfast_leader", {"namespace": "system", "pod": "a"}, lambda _: 1.0)
    ticks = counted(lambda at: 0.2 if at < 20 else 0.0)
    world.add("holdfast_tick_seconds_count", {"namespace": "system", "pod": "a"}, ticks)
    world.fires(19.0)
    world.fires(30.0, ("HoldfastNotDeciding", ""))
    world.play(tmp_path)
