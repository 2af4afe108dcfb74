"""Exactly known series, played through all rules by promtool, and what is expected of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from e2e.promtool import promtool
from holdfast.monitoring import files, series

SCRAPE_SECONDS = 15
MINUTES = 80
ENGINE = {"namespace": "prod", "holdfast_accelerator": "h100", "engine": "0", "model_name": "m"}
CHAT = '{namespace="prod", holdfast_service="chat"}'

Value = Callable[[float], float | None]
"""A series as a function of the minute; None where nothing exports it."""


@dataclass
class World:
    """Series by selector, and what is asked of them after the rules were played."""

    values: dict[str, str] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    minutes: int = MINUTES
    operator_namespace: str | None = None

    def add(self, name: str, labels: Mapping[str, str], value: Value) -> None:
        text = ", ".join(f'{label}="{told}"' for label, told in labels.items())
        told = [value(step * SCRAPE_SECONDS / 60.0) for step in range(self.minutes * 60 // SCRAPE_SECONDS)]
        before = [None, *told]
        selector = f"{name}{{{text}}}"
        assert selector not in self.values
        self.values[selector] = " ".join(map(_sample, told, before))

    def add_native(self, name: str, labels: Mapping[str, str], each_scrape: str) -> None:
        """A native histogram that grows by so much with each scrape, in promtool's words."""
        text = ", ".join(f'{label}="{told}"' for label, told in labels.items())
        self.values[f"{name}{{{text}}}"] = f"{each_scrape}+{each_scrape}x{self.minutes * 60 // SCRAPE_SECONDS}"

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
        groups = files.rule_groups(operator_namespace=self.operator_namespace)
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


def led(minutes: int = MINUTES) -> World:
    world = World(minutes=minutes)
    scraped = {"namespace": "holdfast-system", "pod": "holdfast-0"}
    world.add("holdfast_leader", scraped, lambda _: 1.0)
    world.add("holdfast_tick_seconds_count", scraped, counted(lambda _: 0.2))
    for edge in ("0.1", "+Inf"):
        world.add("holdfast_tick_seconds_bucket", scraped | {"le": edge}, counted(lambda _: 0.2))
    return world


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


def between(begin: float, end: float, value: float) -> Value:
    return lambda at: value if begin <= at < end else None


def _sample(value: float | None, before: float | None) -> str:
    """A sample as promtool reads it; of a series that ends, Prometheus notes that."""
    if value is None:
        return "_" if before is None else "stale"
    return f"{value:.4f}"


def of_chat(name: str, **labels: str) -> str:
    return series.of(name, holdfast_service="chat", **labels)


def conditions(world: World, kind: str, *told: tuple[float, float, str, str]) -> None:
    """A condition from minute to minute, with status and reason."""
    for start, end, status, reason in told:
        labels = {"type": kind, "status": status, "reason": reason}
        world.told("service_condition", lambda at, a=start, b=end: 1.0 if a <= at < b else None, "chat", **labels)


def waits(world: World, since: Value, state: str = "starting", accelerator: str = "h100") -> None:
    """The minute since when a replica waits, as the operator tells it."""

    def seconds(at: float) -> float | None:
        told = since(at)
        return None if told is None else told * 60.0

    name = "service_replica_waits_since_timestamp_seconds"
    world.told(name, seconds, "chat", accelerator=accelerator, state=state)
