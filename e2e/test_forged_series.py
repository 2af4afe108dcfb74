"""What pods of tenants may export: no series of theirs ends a rule, speaks for the operator, or reaches others.

Needs `prometheus` and `promtool` only, no cluster.
"""

from __future__ import annotations

import functools
import http.server
import json
import re
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.toolset import PROMETHEUS
from e2e.patience import patient
from e2e.rules_world import CHAT, World, led, of_chat
from e2e.tsdb import prometheus
from holdfast.monitoring import files, series
from tests.chart.test_chart import TRIAL, only, render

Json = dict[str, Any]
SYSTEM = "holdfast-system"
PAGE = Path(__file__).parents[1] / "docs" / "monitoring.md"

OPERATOR = """
holdfast_leader 1
holdfast_tick_seconds_count 9
holdfast_slo_objective_ratio{namespace="prod",service="chat"} 0.99
holdfast_slo_window_seconds{namespace="prod",service="chat"} 3600
holdfast_slo_attainment_ratio{namespace="prod",service="chat"} 0.995
holdfast_slo_budget_remaining_ratio{namespace="prod",service="chat"} 0.5
"""
ENGINE = """
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_waiting{engine="0"} 0
"""
FORGED = """
holdfast_leader{copy="a"} 1
holdfast_leader{copy="b"} 1
holdfast_slo_objective_ratio{namespace="prod",service="chat",holdfast_service="a"} 0.1
holdfast_slo_objective_ratio{namespace="prod",service="chat",holdfast_service="b"} 0.2
holdfast_slo_objective_ratio{namespace="prod",service="chat",holdfast_accelerator="a"} NaN
holdfast_slo_attainment_ratio{namespace="prod",service="chat"} 9
holdfast_slo_budget_remaining_ratio{namespace="prod",service="chat"} NaN
holdfast_slo_budget_remaining_ratio{namespace="prod",service="other"} -9
holdfast_service:slo_objective:ratio{namespace="prod",holdfast_service="chat",copy="a"} 0.1
holdfast_service:slo_objective:ratio{namespace="prod",holdfast_service="chat",copy="b"} 0.2
vllm:num_requests_running{namespace="prod",holdfast_service="chat",engine="0"} NaN
ALERTS{alertname="HoldfastSloMissed",alertstate="firing",namespace="prod"} 1
"""


def forged(world: World, name: str, value: float, **labels: str) -> None:
    """A series of a tenant's pod, as a scrape stores it that does not honour its labels."""
    scraped = {"namespace": "evil", "pod": "evil-0", "instance": "10.0.0.6:80", "exported_namespace": "prod"}
    world.add(name, scraped | {"service": "chat"} | labels, lambda _: value)


@pytest.fixture
def world() -> World:
    """A service of an operator in the namespace that rules believe."""
    found = led()
    found.service("chat")
    found.operator("chat", slo_attainment_ratio=0.995)
    return found


def test_series_that_label_replace_makes_alike_end_no_rule(world: World, tmp_path: Path) -> None:
    for service in ("a", "b"):
        forged(world, "holdfast_slo_objective_ratio", 0.5, holdfast_service=service)
        forged(world, "holdfast_service_replicas", 1.0, holdfast_accelerator=service, accelerator="h100", state="ready")
    world.expect(20.0, of_chat(series.OBJECTIVE), (CHAT, 0.99))
    world.play(tmp_path)


def test_the_same_series_of_two_namespaces_end_no_rule(world: World, tmp_path: Path) -> None:
    for name, value in (("slo_objective_ratio", 0.5), ("slo_window_seconds", 60.0)):
        scraped = {"pod": "holdfast-0", "exported_namespace": "prod", "service": "chat"}
        world.add(f"holdfast_{name}", scraped | {"namespace": "evil"}, lambda _, value=value: value)
    world.expect(20.0, of_chat(series.OBJECTIVE), (CHAT, 0.99))
    world.play(tmp_path)


def test_a_target_elsewhere_does_not_speak_for_the_operator(world: World, tmp_path: Path) -> None:
    world.operator_namespace = SYSTEM
    forged(world, "holdfast_slo_objective_ratio", 0.9999)
    forged(world, "holdfast_slo_attainment_ratio", 9.0)
    forged(world, "holdfast_slo_budget_remaining_ratio", -9.0)
    forged(world, "holdfast_leader", 1.0, copy="a")
    forged(world, "holdfast_leader", 1.0, copy="b")
    world.expect(20.0, of_chat(series.OBJECTIVE), (CHAT, 0.99))
    world.expect(20.0, of_chat(series.ATTAINMENT), (CHAT, 0.995))
    world.expect(20.0, of_chat(series.BUDGET_LEFT))
    world.expect(20.0, series.of(series.LEADERS), (f'{{namespace="{SYSTEM}"}}', 1.0))
    world.fires(20.0)
    world.play(tmp_path)


def test_no_leader_elsewhere_hides_that_the_operator_is_gone(tmp_path: Path) -> None:
    world = World(operator_namespace=SYSTEM)
    world.add("holdfast_leader", {"namespace": "evil", "pod": "evil-0"}, lambda _: 1.0)
    world.fires(20.0, ("HoldfastAbsent", ""))
    world.play(tmp_path)


def test_scraped_series_with_the_names_of_recorded_ones_are_not_read(world: World, tmp_path: Path) -> None:
    scraped = {"namespace": "prod", "holdfast_service": "chat", "instance": "10.0.0.6:80"}
    for copy in ("a", "b"):
        world.add(series.OBJECTIVE, scraped | {"copy": copy}, lambda _: 0.9999)
        world.add(series.BURN_LIMIT, scraped | {"copy": copy, "burn": "fast"}, lambda _: 0.0)
    world.expect(20.0, of_chat(series.OBJECTIVE), (CHAT, 0.99))
    world.fires(25.0)
    world.play(tmp_path)


def test_no_number_of_a_tenant_hides_that_of_the_operator(world: World, tmp_path: Path) -> None:
    forged(world, "holdfast_slo_objective_ratio", float("nan"))
    world.expect(20.0, of_chat(series.OBJECTIVE), (CHAT, 0.99))
    world.play(tmp_path)


class Target:
    """A pod's /metrics."""

    def __init__(self, text: str, namespace: str, pod: str, **labels: str) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                return

        self.namespace, self.pod, self.labels = namespace, pod, labels
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def annotated(self) -> Json:
        """What service discovery says of an annotated pod."""
        meta = {
            "annotation_prometheus_io_scrape": "true",
            "annotation_prometheus_io_port": str(self.port),
            "ip": "127.0.0.1",
            "namespace": self.namespace,
            "pod_name": self.pod,
            **{f"label_{name}": value for name, value in self.labels.items()},
        }
        own = ("namespace", "pod_name")
        labels = {f"__meta_kubernetes_{'' if name in own else 'pod_'}{name}": value for name, value in meta.items()}
        return {"targets": [f"127.0.0.1:{self.port}"], "labels": labels}

    def monitored(self) -> Json:
        """The target of a PodMonitor."""
        labels = {"namespace": self.namespace, "pod": self.pod, "container": "main", "endpoint": "http"}
        return {"targets": [f"127.0.0.1:{self.port}"], "labels": labels | self.labels}


@pytest.fixture(scope="module")
def targets() -> Iterator[tuple[Target, ...]]:
    """The operator, an engine, and two pods of somebody else that export what they like."""
    engine = {"holdfast_service": "chat", "holdfast_accelerator": "h100"}
    found = (
        Target(OPERATOR, SYSTEM, "holdfast-0"),
        Target(ENGINE, "prod", "chat-0", **engine),
        Target(FORGED, "evil", "evil-0"),
        Target(FORGED, "evil", "evil-1", **engine),
    )
    yield found
    for target in found:
        target.close()


def bundled(targets: tuple[Target, ...]) -> Json:
    """The configuration of the chart's own Prometheus, with targets in place of the API server's."""
    config: Json = yaml.safe_load(only(render(TRIAL), "ConfigMap", "holdfast-prometheus")["data"]["prometheus.yaml"])
    (job,) = config["scrape_configs"]
    del job["kubernetes_sd_configs"]
    job["static_configs"] = [target.annotated() for target in targets]
    return config


def annotated(targets: tuple[Target, ...]) -> Json:
    """The configuration that docs/operations.md shows for scraping by annotation."""
    page = (PAGE.parent / "operations.md").read_text(encoding="utf-8")
    config: Json = yaml.safe_load(next(each for each in _yaml_blocks(page) if "labelmap" in each))
    (job,) = config["scrape_configs"]
    del job["kubernetes_sd_configs"]
    job["static_configs"] = [target.annotated() for target in targets]
    return config


def monitored(targets: tuple[Target, ...]) -> Json:
    """A job for each target, as the Prometheus Operator makes them of PodMonitors."""
    jobs = [
        {"job_name": f"{target.namespace}/{target.pod}", "static_configs": [target.monitored()]} for target in targets
    ]
    return {"scrape_configs": jobs}


def honoured(targets: tuple[Target, ...]) -> Json:
    """Pods of others in a job that honours their labels, with what docs/monitoring.md says to drop."""
    config = monitored(targets[:2])
    snippet = next(each for each in _yaml_blocks(PAGE.read_text(encoding="utf-8")) if "honor_labels: true" in each)
    (job,) = yaml.safe_load(snippet)["scrape_configs"]
    assert job.pop("kubernetes_sd_configs")
    config["scrape_configs"].append(job | {"static_configs": [target.monitored() for target in targets[2:]]})
    return config


def _yaml_blocks(page: str) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("configuration", [bundled, annotated, monitored, honoured], ids=lambda each: each.__name__)
def test_what_tenants_export_reaches_neither_rules_nor_others(
    configuration: Callable[[tuple[Target, ...]], Json],
    targets: tuple[Target, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(PROMETHEUS.program("prometheus").parent), ":")
    with _serving(configuration(targets), tmp_path) as ask:
        _wait_until_recorded(ask)
        rules = [rule for group in ask("/api/v1/rules")["groups"] for rule in group["rules"]]
        assert [rule for rule in rules if rule["health"] != "ok"] == []
        recorded = functools.partial(_value, ask)
        assert recorded(series.OBJECTIVE) == [0.99]
        assert recorded(series.ATTAINMENT) == [0.995]
        assert recorded(series.BUDGET_LEFT) == [0.5]
        assert recorded(series.IN_FLIGHT, state="running") == [3.0]
        assert _value(ask, series.BUDGET_LEFT, holdfast_service="other") == []
        assert [each["metric"]["namespace"] for each in _asked(ask, series.of(series.LEADERS))] == [SYSTEM]
        firing = {alert["labels"]["alertname"] for alert in ask("/api/v1/alerts")["alerts"]}
        assert firing <= {"HoldfastNotDeciding", "HoldfastServiceUnknown"}


@contextmanager
def _serving(config: Json, folder: Path) -> Iterator[Callable[[str], Any]]:
    """A Prometheus that scrapes and evaluates every second; yields how it is asked."""
    rules = files.rule_groups(operator_namespace=SYSTEM)
    for group in rules["groups"]:
        group["interval"] = "1s"
    (folder / "rules.yaml").write_text(files.rules_yaml(rules), encoding="utf-8")
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    config["rule_files"] = [str(folder / "rules.yaml")]
    (folder / "data").mkdir()
    with prometheus(folder / "data", yaml.safe_dump(config)) as url:
        yield functools.partial(_answer, url)


def _answer(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path, timeout=patient(5.0)) as answer:
        return json.load(answer)["data"]


def _asked(ask: Callable[[str], Any], promql: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = ask(f"/api/v1/query?query={urllib.parse.quote(promql)}")["result"]
    return found


def _value(ask: Callable[[str], Any], name: str, **labels: str) -> list[float]:
    selected = series.of(name, **{"namespace": "prod", "holdfast_service": "chat", **labels})
    return [float(each["value"][1]) for each in _asked(ask, selected)]


def _wait_until_recorded(ask: Callable[[str], Any]) -> None:
    """Until every target was scraped, and every rule evaluated after that."""
    deadline = time.monotonic() + patient(30.0)
    while not (_value(ask, series.ATTAINMENT) and len(_asked(ask, "up == 1")) == 4):
        assert time.monotonic() < deadline, ask("/api/v1/targets")
        time.sleep(0.2)
    evaluated = time.time() + 1.0
    while any(_seconds(rule["lastEvaluation"]) < evaluated for group in ask("/api/v1/rules")["groups"]
              for rule in group["rules"]):  # fmt: skip
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(re.sub(r"\.(\d{6})\d*", r".\1", text.replace("Z", "+00:00"))).timestamp()
