"""Values that the operator refuses are refused by the chart, in the operator's words."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from holdfast.runtime import settings
from tests.chart.test_chart import URL, parsed_settings, refusal, render

ADDRESS = "http://prometheus.monitoring:9090"
# Settings of the chart, further values, and what the operator is given of them.
IN_ITS_WORDS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"tick": "0.5s"}, {}, {"tick": "0.5s"}),
    ({"tick": "999ms"}, {}, {"tick": "999ms"}),
    ({"tick": "0h"}, {}, {"tick": "0h"}),
    ({"scrapeInterval": "500ms"}, {}, {"scrape_interval": "500ms"}),
    ({}, {"prometheus": {"enabled": True, "scrapeInterval": "500ms"}}, {"scrape_interval": "500ms"}),
    ({"startupTimeout": "9.9s"}, {}, {"startup_timeout": "9.9s"}),
    ({"leaseDuration": "1s"}, {}, {"lease_duration": "1s"}),
    ({"leaseDuration": "0.05m"}, {}, {"lease_duration": "0.05m"}),
    ({"statusPort": 8080}, {}, {"status_port": 8080}),
    ({"statusPort": 8081}, {}, {"status_port": 8081}),
    ({"statusPort": 8090}, {}, {"status_port": 8090}),
    ({"healthPort": 8080}, {}, {"health_port": 8080}),
    ({"statusPort": 9000, "httpPort": 9000}, {}, {"status_port": 9000, "http_port": 9000}),
    ({"statusPort": 9000, "healthPort": 9000}, {}, {"status_port": 9000, "health_port": 9000}),
    ({"podMonitorLabel": ["holdfast.dev/service=a"]}, {}, {"pod_monitor_label": ["holdfast.dev/service=a"]}),
    ({"engineImage": ["a=b", "c=b", "a=d"]}, {}, {"engine_image": ["a=b", "c=b", "a=d"]}),
    ({"maxPriority": ["a=1", "a=2"]}, {}, {"max_priority": ["a=1", "a=2"]}),
    ({"namespaceShare": ["a=1%", "*=2%", "*=3%"]}, {}, {"namespace_share": ["a=1%", "*=2%", "*=3%"]}),
    ({"maxPriority": ["z=1", "b=1"]}, {"watchNamespaces": ["a"]}, {"max_priority": ["z=1", "b=1"], "namespace": ["a"]}),
    ({"namespaceShare": ["b=1%"]}, {"watchNamespaces": ["a"]}, {"namespace_share": ["b=1%"], "namespace": ["a"]}),
]
BY_THE_SCHEMA: list[tuple[str, Any, str, Any]] = [
    ("tick", "-1s", "tick", "-1s"),
    ("tick", "1h30m", "tick", "1h30m"),
    ("idleTime", "1e3s", "idle_time", "1e3s"),
    ("nodeProvisioningTime", "5", "node_provisioning_time", "5"),
    ("prometheusUrl", "ftp://a", "prometheus_url", "ftp://a"),
    ("prometheusHeader", ["a="], "prometheus_header", ["a="]),
    ("prometheusHeader", ["a=b\n"], "prometheus_header", ["a=b\n"]),
    ("prometheusMatcher", ["1=b"], "prometheus_matcher", ["1=b"]),
    ("prometheusMatcher", ["a=\t"], "prometheus_matcher", ["a=\t"]),
    ("podMonitorLabel", ["a b=c"], "pod_monitor_label", ["a b=c"]),
    ("podMonitorLabel", ["a=b c"], "pod_monitor_label", ["a=b c"]),
    ("podMonitorLabel", ["a=-"], "pod_monitor_label", ["a=-"]),
    ("leaseName", "Holdfast", "lease_name", "Holdfast"),
    ("leaseNamespace", "a/b", "lease_namespace", "a/b"),
    ("statusHost", ["a b"], "status_host", ["a b"]),
    ("statusHost", ["a" * 254], "status_host", ["a" * 254]),
    ("statusPort", 65536, "status_port", 65536),
    ("httpPort", 65536, "http_port", 65536),
    ("healthPort", 65536, "health_port", 65536),
    ("maxPriority", ["a=1.5"], "max_priority", ["a=1.5"]),
    ("namespaceShare", ["a=50"], "namespace_share", ["a=50"]),
    ("allowTemplate", ["all"], "allow_template", ["all"]),
    ("engineImage", ["vllm/vllm-openai:v0.32.0"], "engine_image", ["vllm/vllm-openai:v0.32.0"]),
    ("engineImage", ["a=b c"], "engine_image", ["a=b c"]),
    ("logLevel", "trace", "log_level", "trace"),
    ("logFormat", "xml", "log_format", "xml"),
]


def operators_words(given: dict[str, Any]) -> str:
    """The sentence with which `holdfast run` refuses these settings."""
    environment = {
        f"HOLDFAST_{name.upper()}": ",".join(value) if isinstance(value, list) else str(value)
        for name, value in {"prometheus_url": ADDRESS, **given}.items()
    }
    parser = argparse.ArgumentParser()
    settings.add_arguments(parser)
    with pytest.raises(settings.SettingsError) as error:
        settings.read_settings(parser.parse_args([]), environment)
    return str(error.value)


@pytest.mark.parametrize(("chosen", "more", "given"), IN_ITS_WORDS)
def test_what_the_operator_refuses_is_refused_in_its_words(
    chosen: dict[str, Any], more: dict[str, Any], given: dict[str, Any]
) -> None:
    assert operators_words(given) in refusal({"settings": {**URL["settings"], **chosen}, **more})


@pytest.mark.parametrize(("name", "value", "field", "given"), BY_THE_SCHEMA)
def test_what_is_no_such_setting_is_refused_by_name(name: str, value: Any, field: str, given: Any) -> None:
    assert operators_words({field: given}).startswith("--" + field.replace("_", "-"))
    assert name in refusal({"settings": {**URL["settings"], name: value}})


def test_the_least_values_are_taken_by_both() -> None:
    least = {
        "tick": "1s",
        "scrapeInterval": "1000ms",
        "startupTimeout": "10s",
        "leaseDuration": "5s",
        "statusPort": 8082,
        "statusOpen": True,
    }
    told = parsed_settings(render({"settings": {**URL["settings"], **least}}))
    assert (told.tick_seconds, told.scrape_seconds, told.startup_seconds, told.lease_duration_seconds) == (1, 1, 10, 5)
