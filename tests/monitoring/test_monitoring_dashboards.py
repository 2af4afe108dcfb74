"""Dashboards: their queries name what exists, parse, and fit onto the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from e2e.promtool import promtool
from holdfast.cli.main import main
from holdfast.monitoring import files
from holdfast.monitoring.dashboards import dashboards
from holdfast.monitoring.panels import COLUMNS, Dashboard, grafana
from holdfast.monitoring.rules import recordings
from tests.monitoring.exported import OF_OLDER_VLLM, OF_PROMETHEUS, exported, names_in

ALL = pytest.mark.parametrize("dashboard", dashboards(), ids=lambda dashboard: dashboard.uid)


def queries(dashboard: Dashboard) -> list[str]:
    variables = [re.sub(r"^label_values\((.*), \w+\)$", r"\1", variable.query) for variable in dashboard.variables]
    annotations = [annotation.expr for annotation in dashboard.annotations]
    return [target.expr for _, target in dashboard.targets()] + variables + annotations


@ALL
def test_every_metric_is_exported_or_recorded(dashboard: Dashboard, tmp_path: Path) -> None:
    known = exported(tmp_path) | OF_OLDER_VLLM | OF_PROMETHEUS
    for expr in queries(dashboard):
        selected, others = names_in(expr)
        assert selected <= known, expr
        assert not others, expr


@ALL
def test_dashboards_read_only_what_rules_made(dashboard: Dashboard) -> None:
    made = {recording.record for recording in recordings()} | OF_PROMETHEUS
    for expr in queries(dashboard):
        selected, _ = names_in(expr)
        assert selected <= made, expr
        assert all(expr.count(f"{name}{{") == expr.count(f'{name}{{instance=""') for name in selected), expr


@ALL
def test_prometheus_parses_every_query(dashboard: Dashboard, tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{index}", "expr": expr.replace("$namespace", "prod").replace("$service", "chat")}
        for index, expr in enumerate(queries(dashboard))
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = promtool("check", "rules", "--lint=none", file)
    assert done.returncode == 0, done.stdout + done.stderr


@ALL
def test_variables_are_the_only_thing_put_into_queries(dashboard: Dashboard) -> None:
    names = {f"${variable.name}" for variable in dashboard.variables}
    for expr in queries(dashboard):
        assert set(re.findall(r"\$\w+", expr.replace('"$1"', ""))) <= names
        assert all(f'"{name}' in expr for name in names if name in expr)


@ALL
def test_variables_offer_names_of_kubernetes_only(dashboard: Dashboard) -> None:
    for variable in grafana(dashboard)["templating"]["list"]:
        if variable["type"] == "query":
            pattern = re.compile(variable["regex"].strip("/"))
            assert pattern.fullmatch("prod-eu.1")
            assert not any(pattern.fullmatch(name) for name in ('a"} or vector(1)', "a|b", ".*", "", "a\n"))


@ALL
def test_panels_lie_beside_each_other_on_the_page(dashboard: Dashboard) -> None:
    taken: set[tuple[int, int]] = set()
    panels = grafana(dashboard)["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    for panel in panels:
        grid = panel["gridPos"]
        right, below = grid["x"] + grid["w"], grid["y"] + grid["h"]
        cells = {(x, y) for x in range(grid["x"], right) for y in range(grid["y"], below)}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < COLUMNS
        taken |= cells


@ALL
def test_every_panel_has_a_title_and_a_source_that_is_chosen(dashboard: Dashboard) -> None:
    for panel in grafana(dashboard)["panels"]:
        assert panel["title"]
        if panel["type"] != "row":
            assert panel["targets"]
            assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_quantiles_come_from_sums_and_shares_from_sums_over_time() -> None:
    for dashboard in dashboards():
        for _, target in dashboard.targets():
            assert "avg" not in re.sub(r":avg\{", "{", target.expr), target.expr


def test_one_dashboard_is_printed_and_all_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboards", "service"]) == 0
    assert json.loads(capsys.readouterr().out)["uid"] == "holdfast-service"
    assert main(["dashboards", "--out", str(tmp_path / "new")]) == 0
    assert {path.name: path.read_text() for path in (tmp_path / "new").iterdir()} == files.dashboard_files()
    assert main(["dashboards"]) == 2
    (tmp_path / "file").touch()
    assert main(["dashboards", "--out", str(tmp_path / "file")]) == 2
