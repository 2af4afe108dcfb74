"""Recording rules and alerts over exactly known series, played by promtool: what fires, when, and what stays quiet.

Needs `promtool` only: no cluster and no Prometheus that runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.promtool import promtool
from holdfast.monitoring import files, series
from holdfast.monitoring.alerts import alerts

SCRAPE_SECONDS = 15
MINUTES = 80
ENGINE = {"namespace": "prod", "holdfast_accelerator": "h100", "engine": "0", "model_name": "m"}
CHAT = '{namespace="prod", holdfast_service="chat"}'
FAST, SLOW = "HoldfastErrorBudgetFastBurn", "HoldfastErrorBudgetSlowBurn"

Value = Callable[[float], float | None]
"""A series as a function of the minute; None where nothing exports it."""


@dataclass
class World:
    """Series by selector, and what is asked of them after the rules were played."""

    values: dict[str, str] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    minutes: int = MINUTES

    def add(self, name: str, labels: Mapping[str, str], value: Value) -> None:
        text = ", ".join(f'{label}="{told}"' for label, told in labels.items())
        told = [value(step * SCRAPE_SECONDS / 60.0) for step in range(self.minutes * 60 // SCRAPE_SECONDS)]
        before = [None, *told]
        selector = f"{name}{{{text}}}"
        assert selector not in self.values
        self.values[selector] = " ".join(map(_sample, told, before))

    def operator(self, service: str, **gauges: float | Value) -> None:
        """What the operator exports of a service, as a scrape stores it that does not honour its labels."""
        for name, value in gauges.items():
            self.told(name, value, service)

    def told(self, name: str, value: float | Value, service: str, /, **labels: str) -> None:
        scraped = {"namespace": "holdfast-system", "pod": "holdfast-0"} | {"exported_namespace": "prod"}
        self.add(
            f"holdfast_{name}", scraped | {"service": service} | labels, value if callable(value) else lambda _: value
        )

    def service(self, name: str, objective: float = 0.99, window: float = 3600.0) -> None:
        self.operator(name, slo_objective_ratio=objective, slo_window_seconds=window)

    def engine(self, service: str, pod: str = "a") -> dict[str, str]:
        labels = ENGINE | {"holdfast_service": service, "pod": f"{service}-{pod}", "instance": f"{service}-{pod}:8000"}
        for gauge in ("running", "waiting"):
            self.add(f"vllm:num_requests_{gauge}", labels, lambda _: 1.0)
        return labels

    def judged(self, service: str, rps: float, bad_share: Callable[[float], float], pod: str = "a") -> dict[str, str]:
        """An engine whose plugin judges so many requests a second; returns the labels of its series."""
        labels = self.engine(service, pod)
        self.add("holdfast:plugin_info", labels | {"mode": "active"}, lambda _: 1.0)
        bad = counted(lambda at: rps * bad_share(at))
        self.add("holdfast:requests_bad_total", labels | {"cause": "ttft"}, bad)
        self.add("holdfast:requests_good_total", labels, counted(lambda at: rps * (1.0 - bad_share(at))))
        self.add("holdfast:requests_arrived_total", labels, counted(lambda _: rps))
        return labels

    def expect(self, minute: float, expr: str, *samples: tuple[str, float]) -> None:
        """Expect these samples, by their labels, to four digits."""
        found = [{"labels": labels, "value": value} for labels, value in samples]
        self.asked.append({"expr": f"round({expr}, 0.0001)", "eval_time": f"{minute * 60:.0f}s", "exp_samples": found})

    def calls(self, minute: float, alert: str, *services: str) -> None:
        """Expect this alert for these and no other services."""
        fired = f'count by (holdfast_service) (ALERTS{{alertname="{alert}", alertstate="firing"}})'
        self.expect(minute, fired, *((f'{{holdfast_service="{name}"}}', 1.0) for name in services))

    def fires(self, minute: float, *alerts: tuple[str, str]) -> None:
        """Expect these and no other alerts, by name and service."""
        fired = 'count by (alertname, holdfast_service) (ALERTS{alertstate="firing"})'
        expected = (f'{{alertname="{alert}", holdfast_service="{name}"}}' for alert, name in alerts)
        self.expect(minute, fired, *((labels.replace(', holdfast_service=""', ""), 1.0) for labels in expected))

    def recorded(self, service: str, objective: float, window: float, bad_share: Value) -> None:
        """What is recorded of a service with ten requests a second: to be played with `burning`, for long worlds."""
        labels = {"namespace": "prod", "holdfast_service": service}
        judged = {series.OBJECTIVE: objective, series.WINDOW: window, series.JUDGED: 10.0}
        for name, value in judged.items():
            self.add(name, labels, lambda _, value=value: value)
        self.add(series.BAD, labels, lambda at: 10.0 * (bad_share(at) or 0.0))

    def play(self, folder: Path, wanted: Callable[[Mapping[str, Any]], bool] = lambda _: True) -> None:
        """Play all rules, or those that are wanted."""
        groups = files.rule_groups()
        for group in groups["groups"]:
            group["rules"] = [rule for rule in group["rules"] if wanted(rule)]
        (folder / "rules.yaml").write_text(files.rules_yaml(groups))
        test = {
            "interval": f"{SCRAPE_SECONDS}s",
            "input_series": [{"series": name, "values": values} for name, values in self.values.items()],
            "promql_expr_test": self.asked,
        }
        file = folder / "test.yaml"
        played = {"rule_files": ["rules.yaml"], "evaluation_interval": "30s"}
        file.write_text(yaml.safe_dump(played | {"tests": [test]}, width=10**9))
        done = promtool("test", "rules", file)
        assert done.returncode == 0, done.stdout + done.stderr


def burning(tier: str) -> Callable[[Mapping[str, Any]], bool]:
    """The rules between what is recorded of requests and the fast alert of one tier."""

    def wanted(rule: Mapping[str, Any]) -> bool:
        labels = rule.get("labels", {})
        if rule.get("record") == series.BURN_LIMIT:
            return True
        mine = (series.TIERED_BAD, series.TIERED_JUDGED, FAST)
        return labels.get("tier") == tier and rule.get("record", rule.get("alert")) in mine

    return wanted


@pytest.fixture
def world() -> World:
    """A world in which an operator leads and ticks."""
    return led()


def led(minutes: int = MINUTES) -> World:
    world = World(minutes=minutes)
    scraped = {"namespace": "holdfast-system", "pod": "holdfast-0"}
    world.add("holdfast_leader", scraped, lambda _: 1.0)
    world.add("holdfast_tick_seconds_count", scraped, counted(lambda _: 0.2))
    for edge in ("0.1", "+Inf"):
        world.add("holdfast_tick_seconds_bucket", scraped | {"le": edge}, counted(lambda _: 0.2))
    return world


def _sample(value: float | None, before: float | None) -> str:
    """A sample as promtool reads it; of a series that ends, Prometheus notes that."""
    if value is None:
        return "_" if before is None else "stale"
    return f"{value:.4f}"


def counted(rate: Callable[[float], float]) -> Value:
    """A counter that grows by the rate, per second, of each scrape's minute."""
    totals = [0.0]

    def value(at: float) -> float:
        while len(totals) <= (step := round(at * 60.0 / SCRAPE_SECONDS)):
            totals.append(totals[-1] + rate((len(totals) - 1) * SCRAPE_SECONDS / 60.0) * SCRAPE_SECONDS)
        return totals[step]

    return value


def since(minute: float, share: float, before: float = 0.001) -> Callable[[float], float]:
    return lambda at: share if at >= minute else before


def of_chat(name: str, **labels: str) -> str:
    return series.of(name, holdfast_service="chat", **labels)


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


def test_shares_are_of_all_requests_and_no_mean_of_engines_shares(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.judged("chat", 90.0, lambda _: 0.0, "busy")
    world.judged("chat", 10.0, lambda _: 1.0, "idle")
    world.expect(20.0, f"{of_chat(series.BAD)} / {of_chat(series.JUDGED)}", (CHAT, 0.1))
    world.expect(
        20.0, of_chat(series.BAD_BY_CAUSE), ('{cause="ttft", namespace="prod", holdfast_service="chat"}', 10.0)
    )
    world.play(tmp_path)


def test_engines_without_the_plugin_are_judged_by_the_edges_of_their_objectives(world: World, tmp_path: Path) -> None:
    world.service("plain")
    labels = world.engine("plain")
    for reason, rps in (("stop", 8.0), ("length", 2.0), ("error", 0.5), ("abort", 1.0)):
        world.add("vllm:request_success_total", labels | {"finished_reason": reason}, counted(lambda _, rps=rps: rps))
    for edge, rps in (("0.4", 8.0), ("0.5", 9.0), ("1.0", 10.0), ("+Inf", 10.0)):
        world.add("vllm:time_to_first_token_seconds_bucket", labels | {"le": edge}, counted(lambda _, rps=rps: rps))
    for edge, rps in (("0.05", 9.5), ("+Inf", 10.0)):
        bucket = labels | {"le": edge}
        world.add("vllm:request_time_per_output_token_seconds_bucket", bucket, counted(lambda _, rps=rps: rps))
    for latency, edge in (("ttft", "0.4"), ("ttft", "0.5"), ("tpot", "0.05"), ("tpot", "0.04")):
        world.told("slo_edge", 1.0, "plain", latency=latency, le=edge)
    plain = '{namespace="prod", holdfast_service="plain"}'
    world.expect(20.0, series.of(series.JUDGED), (plain, 10.5))
    world.expect(20.0, series.of(series.BAD), (plain, 2.0))  # 1 late, 0.5 slow, 0.5 failed
    world.expect(20.0, f"max ({series.of(series.QUANTILES[0][1], latency='ttft')})", ("{}", 0.25))
    world.fires(20.0, (FAST, "plain"), (SLOW, "plain"))
    world.play(tmp_path)


def test_half_a_rollout_is_judged_by_bounds_as_the_operator_does(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.judged("chat", 10.0, lambda _: 0.0)
    world.engine("chat", "without")
    world.expect(20.0, of_chat(series.JUDGED_EXACTLY))
    world.expect(20.0, of_chat(series.JUDGED))
    world.play(tmp_path)


def test_objectives_outlive_an_operator_that_is_gone_for_a_while(world: World, tmp_path: Path) -> None:
    gone = MINUTES / 2
    for name, value in (("objective_ratio", 0.99), ("window_seconds", 3600.0)):
        world.told(f"slo_{name}", lambda at, value=value: value if at < gone else None, "chat")
    world.judged("chat", 10.0, since(gone, 0.3, 0.0))
    world.fires(gone + 10.0, (FAST, "chat"), (SLOW, "chat"))
    world.play(tmp_path)


def conditions(world: World, kind: str, *told: tuple[float, float, str, str]) -> None:
    """A condition from minute to minute, with status and reason."""
    for start, end, status, reason in told:
        labels = {"type": kind, "status": status, "reason": reason}
        world.told("service_condition", lambda at, a=start, b=end: 1.0 if a <= at < b else None, "chat", **labels)


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


def waits(world: World, since: Value, state: str = "starting", accelerator: str = "h100") -> None:
    """The minute since when a replica waits, as the operator tells it."""

    def seconds(at: float) -> float | None:
        told = since(at)
        return None if told is None else told * 60.0

    name = "service_replica_waits_since_timestamp_seconds"
    world.told(name, seconds, "chat", accelerator=accelerator, state=state)


def between(begin: float, end: float, value: float) -> Value:
    return lambda at: value if begin <= at < end else None


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
    world.told("slo_attainment_ratio", lambda at: 0.98 if 20.0 <= at < 50.0 else 0.995, "chat")
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


def test_gpus_their_use_and_the_fullest_cache_are_recorded_of_all_engines(world: World, tmp_path: Path) -> None:
    world.service("chat")
    for pod, flops, usage in (("a", 3e14, 0.3), ("b", 5e14, 0.7)):
        labels = world.engine("chat", pod)
        world.add("vllm:kv_cache_usage_perc", labels, lambda _, usage=usage: usage)
        for name, rate in (("flops", flops), ("read_bytes", 1e12), ("write_bytes", 5e11)):
            world.add(f"vllm:estimated_{name}_per_gpu_total", labels, counted(lambda _, rate=rate: rate))
    for what, peak in (("flops", 1e15), ("bytes", 3e12)):
        world.told("service_gpu_peak", peak, "chat", accelerator="h100", of=what)
    world.told("service_gpus_per_replica", 2.0, "chat", accelerator="h100")
    world.told("service_replicas", 3.0, "chat", accelerator="h100", state="ready")
    h100 = f'{CHAT[:-1]}, holdfast_accelerator="h100", '
    world.expect(20.0, of_chat(series.KV_MEAN), (CHAT, 0.5))
    world.expect(20.0, of_chat(series.KV_MOST), (CHAT, 0.7))
    world.expect(20.0, of_chat(series.GPU_USE, of="flops"), (f'{h100}of="flops"}}', 0.4))
    world.expect(20.0, of_chat(series.GPU_USE, of="bytes"), (f'{h100}of="bytes"}}', 0.5))
    world.expect(20.0, of_chat(series.GPUS), (f'{h100}state="ready"}}', 6.0))
    world.play(tmp_path)


def test_limits_are_of_the_lowest_engine_else_what_engines_were_started_with(world: World, tmp_path: Path) -> None:
    for name in ("chat", "plain"):
        world.service(name)
        for accelerator, tokens in (("h100", 4096.0), ("l40s", 2048.0)):
            labels = {"accelerator": accelerator, "name": "tokens_per_step"}
            world.told("service_batching_limit", tokens, name, **labels)
    for pod, tokens in (("a", 1024.0), ("b", 512.0)):
        labels = world.engine("chat", pod) | {"name": "tokens_per_step"}
        world.add("holdfast:limits", labels, lambda _, tokens=tokens: tokens)
    limit = '{{namespace="prod", holdfast_service="{}", name="tokens_per_step"}}'
    samples = ((limit.format("chat"), 512.0), (limit.format("plain"), 2048.0))
    world.expect(20.0, f"sum by (namespace, holdfast_service, name) ({series.of(series.ENGINE_LIMIT)})", *samples)
    world.play(tmp_path)


def test_every_alert_is_played_here() -> None:
    played = Path(__file__).read_text(encoding="utf-8")
    assert {alert.name for alert in alerts()} <= set(re.findall(r'"(Holdfast\w+)"', played))


def test_engines_that_the_operator_does_not_know_are_told(world: World, tmp_path: Path) -> None:
    world.engine("orphan")
    world.fires(30.0, ("HoldfastServiceUnknown", "orphan"))
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


def test_costs_are_of_the_tokens_and_good_requests_of_the_same_time(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.judged("chat", 10.0, lambda _: 0.2)
    world.operator("chat", service_cost_dollars_per_hour=7.2)
    labels = ENGINE | {"holdfast_service": "chat", "pod": "chat-a", "instance": "chat-a:8000"}
    for kind, rate in (("prompt", 900.0), ("generation", 100.0)):
        world.add(f"vllm:{kind}_tokens_total", labels, counted(lambda _, rate=rate: rate))
    world.expect(20.0, of_chat(series.COST_OF_TOKENS), (CHAT, 2.0))
    world.expect(20.0, of_chat(series.COST_OF_GOOD), (CHAT, 0.25))
    world.play(tmp_path)
