"""Recording rules and alerts: what they name exists, parses, and says what the operator itself believes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from e2e.promtool import promtool
from holdfast.cli.main import main
from holdfast.domain.burn_rate import FAST, REACHABLE, SLOW
from holdfast.domain.service import Slo
from holdfast.monitoring import files, series
from holdfast.monitoring.alerts import Alert, alerts
from holdfast.monitoring.rules import BURNS, LEAST_FAST_SECONDS, SUDDEN_SHARE, TIERS, Tier, recordings
from tests.monitoring.exported import OF_OLDER_VLLM, exported, names_in, of_operator
from tests.monitoring.regenerate import FOLDER, generated

ROOT = Path(__file__).parents[2]
EXPRESSIONS = {
    **{f"{recording.record} {dict(recording.labels)}": recording.expr for recording in recordings()},
    **{f"{alert.name} {dict(alert.labels)}": alert.expr for alert in alerts()},
}
PAGE = (ROOT / "docs" / "monitoring.md").read_text()


@pytest.mark.parametrize("name", ["rules.yaml", "holdfast-fleet.json", "holdfast-service.json"])
def test_the_charts_files_are_what_the_code_makes(name: str) -> None:
    assert (FOLDER / name).read_text() == generated()[name], "if this is meant: make generate, then read the diff"


def test_no_other_file_lies_beside_them() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(generated())


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_metric_is_exported_by_somebody(name: str, tmp_path: Path) -> None:
    selected, others = names_in(EXPRESSIONS[name])
    assert selected
    assert selected - exported(tmp_path) <= OF_OLDER_VLLM
    assert not others, "a selector without braces cannot be narrowed to one cluster"


def test_recordings_come_after_those_they_are_made_of() -> None:
    known: set[str] = set()
    names = {recording.record for recording in recordings()}
    for recording in recordings():
        assert names_in(recording.expr)[0] & names <= known, recording.record
        known.add(recording.record)


def test_every_recording_is_named_by_its_level() -> None:
    level = f"({series.LEVEL}|{series.OPERATOR})"
    assert all(re.fullmatch(rf"{level}:[a-z0-9_]+:[a-z0-9_]+", item.record) for item in recordings())
    same = [(recording.record, recording.labels) for recording in recordings()]
    assert len(set(same)) == len(same)


@pytest.mark.parametrize("objective", [0.51, 0.7, 0.9, 0.99, 0.9999])
@pytest.mark.parametrize("burn", BURNS, ids=lambda burn: burn[0])
def test_an_alert_fires_at_the_burn_that_alarms_the_operator(burn: tuple[str, object], objective: float) -> None:
    name, window = burn
    slo = Slo(1.0, 0.1, objective, 3600.0)
    (recording,) = (r for r in recordings() if r.record == series.BURN_LIMIT and dict(r.labels) == {"burn": name})
    found = re.fullmatch(r"clamp_max\(([\d.]+) \* \(1 - \S+\), ([\d.]+)\)", recording.expr)
    assert found
    limit = min(float(found[1]) * (1 - objective), float(found[2]))
    assert limit == pytest.approx(window.threshold(slo) * slo.budget_share)  # type: ignore[attr-defined]


def test_tiers_hold_every_window_once() -> None:
    assert TIERS[0].over_seconds == 0.0
    assert TIERS[-1].upto_seconds == 30 * 86400.0
    assert [tier.over_seconds for tier in TIERS[1:]] == [tier.upto_seconds for tier in TIERS[:-1]]


def test_a_fast_alert_looks_at_less_than_a_slow_one_and_both_at_less_than_the_window() -> None:
    for tier in TIERS:
        (slow,), fast = tier.looks("slow"), tier.looks("fast")
        assert slow.long_seconds / fast[-1].long_seconds == FAST.divisor / SLOW.divisor
        spans = [look.long_seconds for look in (*fast, slow)]
        assert spans == sorted(set(spans))
        assert spans[0] == 300.0
        assert spans[-1] < tier.upto_seconds
        for look in (*fast, slow):
            assert 120.0 <= look.short_seconds < look.long_seconds


@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.name)
@pytest.mark.parametrize("objective", [0.51, 0.9, 0.99, 0.999, 0.9999])
def test_a_total_outage_is_over_the_limit_within_five_minutes(tier: Tier, objective: float) -> None:
    limits = {name: window.budget_share * window.divisor for name, window in BURNS}
    limits["sudden"] = max(SUDDEN_SHARE * tier.upto_seconds / LEAST_FAST_SECONDS, limits["fast"])
    after = (look.long_seconds * min(limits[look.limit] * (1 - objective), REACHABLE) for look in tier.looks("fast"))
    assert min(after) <= 300.0


@pytest.mark.parametrize(
    "alert", alerts(), ids=lambda alert: f"{alert.name}-{dict(alert.labels).get('tier', alert.severity)}"
)
def test_alerts_are_named_graded_and_explained(alert: Alert) -> None:
    assert re.fullmatch(r"Holdfast[A-Za-z]+", alert.name)
    assert alert.severity in ("critical", "warning", "info")
    assert re.fullmatch(r"\d+[mhd]", alert.after)
    assert len(alert.runbook) > 80
    assert f"| {alert.name} |" in PAGE


def test_no_alert_is_described_that_does_not_exist() -> None:
    assert set(re.findall(r"^\| (Holdfast\w+) \|", PAGE, re.MULTILINE)) == {alert.name for alert in alerts()}


def test_label_values_reach_texts_as_text_only() -> None:
    allowed = re.compile(r"\{\{ \$(labels\.[a-z_]+|value( \| humanize(Percentage|Duration))?) \}\}")
    for alert in alerts():
        for text in (alert.summary, alert.runbook):
            assert "{{" not in allowed.sub("", text)
        assert "{{" not in alert.expr + alert.name + str(alert.labels)


def test_alerts_about_a_service_bear_its_name() -> None:
    for alert in alerts():
        told = "$labels.holdfast_service" in alert.summary
        assert told or "operator" in alert.summary.lower(), alert.name


def test_prometheus_accepts_every_rule(tmp_path: Path) -> None:
    many = tmp_path / "many.yaml"
    many.write_text(files.rules_yaml(files.rule_groups(60.0, (("cluster", 'a"b\\c'), ("env", "prod")))))
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", FOLDER / "rules.yaml", many)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_for_one_cluster_ask_and_record_that_cluster_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--json", "--prometheus-matcher", "cluster=eu"]) == 0
    for group in json.loads(capsys.readouterr().out)["groups"]:
        for rule in group["rules"]:
            bare = re.sub(r'"(\\.|[^"\\])*"', '""', rule["expr"])
            assert bare.count("{") == bare.count('{cluster=""')
            assert rule["labels"]["cluster"] == "eu"


def test_slower_scrapes_make_longer_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--scrape-interval", "1m"]) == 0
    text = capsys.readouterr().out
    assert "[4m]" in text
    assert "[2m]" not in text.replace("sum_over_time", "").split("holdfast-alerts")[0]


def test_only_targets_in_the_operators_namespace_are_believed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--json", "--operator-namespace", "holdfast-.+", "--prometheus-matcher", "cluster=eu"]) == 0
    rules = [rule for group in json.loads(capsys.readouterr().out)["groups"] for rule in group["rules"]]
    ours = of_operator()
    for rule in rules:
        for name in names_in(rule["expr"])[0] & ours:
            believed = f'{name}{{cluster="eu", namespace=~"holdfast-.+"'
            assert rule["expr"].count(f"{name}{{") == rule["expr"].count(believed), rule


def test_alerts_have_the_address_of_their_page_where_a_base_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for base in ([], ["--runbook-base", ""], ["--runbook-base", "https://docs.example.com/h/"]):
        assert main(["rules", "--json", *base]) == 0
        groups = json.loads(capsys.readouterr().out)["groups"]
        fired = [rule for group in groups for rule in group["rules"] if "alert" in rule]
        found.append({alert["annotations"].get("runbook_url") for alert in fired})
    assert found == [{None}, {None}, {"https://docs.example.com/h/docs/monitoring.md#alerts"}]


def test_no_scraped_series_is_taken_for_a_recorded_one() -> None:
    recorded = {recording.record for recording in recordings()}
    for name, expr in EXPRESSIONS.items():
        for used in names_in(expr)[0] & recorded:
            assert expr.count(f"{used}{{") == expr.count(f'{used}{{instance=""'), name


def test_an_object_of_the_prometheus_operator_holds_the_same_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--prometheus-rule", "holdfast", "--label", "release=kps"]) == 0
    told = yaml.safe_load(capsys.readouterr().out)
    assert (told["kind"], told["metadata"]) == ("PrometheusRule", {"name": "holdfast", "labels": {"release": "kps"}})
    assert told["spec"] == files.rule_groups()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--scrape-interval", "soon"],
        ["--scrape-interval", "0s"],
        ["--prometheus-matcher", "a-b=c"],
        ["--label", "x"],
        ["--runbook-base", "docs.example.com"],
        ["--operator-namespace", "("],
        ["--operator-namespace", ""],
    ],
)
def test_flags_that_make_no_sense_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["rules", *arguments])
    assert refused.value.code == 2
