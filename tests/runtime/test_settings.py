"""Settings: one line that names the flag and the remedy, or an operator that does what was asked."""

import argparse
from fractions import Fraction

import pytest

from holdfast.api.tenants import limit_of
from holdfast.cli.main import main
from holdfast.runtime.settings import Settings, SettingsError, add_arguments, read_settings

URL = "--prometheus-url=http://prometheus:9090"


def read(*flags: str, **environment: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read_settings(parser.parse_args(flags), environment)


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--startup-timeout=soon", "--startup-timeout"),
        ("--startup-timeout=9s", "--startup-timeout: must be at least 10s"),
        ("--startup-timeout=-1s", "--startup-timeout"),
        ("--pod-monitor-label=release", "--pod-monitor-label: must be NAME=VALUE"),
        ("--pod-monitor-label==x", "--pod-monitor-label: must be NAME=VALUE"),
        ("--pod-monitor-label=a b=x", "--pod-monitor-label: must be NAME=VALUE"),
        ("--pod-monitor-label=release=k p s", "--pod-monitor-label: must be NAME=VALUE"),
        (f"--pod-monitor-label=release={'x' * 64}", "--pod-monitor-label: must be NAME=VALUE"),
        ("--pod-monitor-label=holdfast.dev/service=x", "--pod-monitor-label: label holdfast.dev/service is reserved"),
        ("--tick=0s", "--tick: must be at least 1s"),
        ("--scrape-interval=0s", "--scrape-interval: must be at least 1s"),
        ("--namespace=UPPER", "--namespace: must be the name of a Kubernetes object"),
        ("--lease-name=../x", "--lease-name: must be the name of a Kubernetes object"),
        ("--prometheus-header=A=b\nC: d", "--prometheus-header: must be NAME=VALUE"),
        ("--prometheus-matcher=cluster", "--prometheus-matcher: must be NAME=VALUE"),
        ("--prometheus-matcher=my-cluster=eu", "--prometheus-matcher: must be NAME=VALUE"),
        ("--lease-duration=1s", "--lease-duration: must be at least 5s"),
        ("--http-port=70000", "--http-port"),
        ("--status-port=70000", "--status-port"),
        ("--status-port=8080", "--status-port: 8080 is already --http-port"),
        ("--health-port=8080", "--health-port: 8080 is already --http-port"),
        ("--status-port=8081", "--status-port: 8081 is already --health-port"),
        ("--status-port=8090", "--status-port: the page asks for a token; name its file with --status-token-file, or"),
        ("--status-token-file=/nowhere/token", "--status-token-file: no such file"),
        ("--status-host=http://holdfast.example", "--status-host: must be a host name"),
        ("--status-host=a b", "--status-host: must be a host name"),
        ("--max-priority=10", "--max-priority: must be NAMESPACE=PRIORITY"),
        ("--max-priority==10", "--max-priority: must be NAMESPACE=PRIORITY"),
        ("--max-priority=team-a=", "--max-priority: must be NAMESPACE=PRIORITY"),
        ("--max-priority=team-a=high", "--max-priority: must be NAMESPACE=PRIORITY"),
        ("--max-priority=team-a=nan", "--max-priority: must be NAMESPACE=PRIORITY"),
        ("--max-priority=team-a=1.5", "--max-priority: must be NAMESPACE=PRIORITY"),
        ("--max-priority=team-a=1000000001", "--max-priority: must be NAMESPACE=PRIORITY"),
        ("--max-priority=team-a=\u0661", "--max-priority: must be NAMESPACE=PRIORITY"),
        ("--max-priority=team-a=1\n", "--max-priority: must be NAMESPACE=PRIORITY"),
        ("--max-priority=Team_A=1", "--max-priority: must be NAMESPACE=PRIORITY"),
        ("--max-priority=team-*=1", "--max-priority: must be NAMESPACE=PRIORITY"),
        (f"--max-priority={'x' * 64}=1", "--max-priority: must be NAMESPACE=PRIORITY"),
        ("--namespace-share=team-a=50", "--namespace-share: must be NAMESPACE=PERCENT%"),
        ("--namespace-share=team-a=0.5", "--namespace-share: must be NAMESPACE=PERCENT%"),
        ("--namespace-share=team-a=101%", "--namespace-share: must be NAMESPACE=PERCENT%"),
        ("--namespace-share=team-a=100.1%", "--namespace-share: must be NAMESPACE=PERCENT%"),
        ("--namespace-share=team-a=-1%", "--namespace-share: must be NAMESPACE=PERCENT%"),
        ("--namespace-share=team-a=nan%", "--namespace-share: must be NAMESPACE=PERCENT%"),
        ("--namespace-share=50%", "--namespace-share: must be NAMESPACE=PERCENT%"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(flag: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", URL, flag]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert told in lines[0]


@pytest.mark.parametrize("flag", ["--max-priority", "--namespace-share"])
def test_a_limit_that_would_limit_nobody_or_has_two_values_is_refused(flag: str) -> None:
    one, other = ("1", "2") if flag == "--max-priority" else ("1%", "2%")
    with pytest.raises(SettingsError, match=f"{flag}: namespace team-a is named twice"):
        read(URL, f"{flag}=team-a={one}", f"{flag}=team-a={other}")
    with pytest.raises(SettingsError, match=f"{flag}: namespace team-a is not watched; .*--namespace=team-a"):
        read(URL, f"{flag}=team-a={one}", "--namespace=team-b")
    read(URL, f"{flag}=team-a={one}", f"{flag}=*={other}", "--namespace=team-b", "--namespace=team-a")


def test_a_share_is_exact_and_the_star_stands_for_all_other_namespaces() -> None:
    told = read(URL, "--namespace-share=team-a=33.3%", "--namespace-share=*=0%", "--max-priority=*=-5")
    assert told.namespace_shares == {"team-a": Fraction(333, 1000), "*": 0}
    assert limit_of(told.namespace_shares, "team-a") == Fraction(333, 1000)
    assert (limit_of(told.namespace_shares, "team-b"), limit_of(told.max_priorities, "team-a")) == (0, -5)
    assert limit_of(read(URL).max_priorities, "team-a") is None


def test_an_operator_without_prometheus_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="--prometheus-url"):
        read()


def test_what_is_given_more_than_once_is_kept_in_order() -> None:
    told = read(URL, "--pod-monitor-label=release=kps", "--pod-monitor-label=example.com/team=")
    assert told.pod_monitor_labels == {"release": "kps", "example.com/team": ""}


def test_the_environment_says_the_same_as_the_flags() -> None:
    told = read(URL, HOLDFAST_STARTUP_TIMEOUT="1h", HOLDFAST_POD_MONITOR_LABEL="release=kps,team=a")
    assert (told.startup_seconds, told.pod_monitor_labels) == (3600.0, {"release": "kps", "team": "a"})


def test_a_flag_wins_over_the_environment() -> None:
    assert read(URL, "--startup-timeout=2m", HOLDFAST_STARTUP_TIMEOUT="1h").startup_seconds == 120.0
