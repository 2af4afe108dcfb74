"""The documentation says what is true: targets, settings, metrics, reasons and examples exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from holdfast.api import llmbenchmark
from holdfast.api.conditions import ConditionType
from holdfast.api.llmbenchmark import LLMBenchmark
from holdfast.api.llmservice import KIND, LLMService
from holdfast.api.reasons import Reason
from holdfast.cli.main import build_parser
from holdfast.runtime.settings import Settings
from holdfast.runtime.telemetry import Telemetry
from holdfast.tools.bench.runs import checks
from holdfast_engine.objectives.rules import parse_limits

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for folder in ("docs", "e2e", "examples") for page in (ROOT / folder).rglob("*.md"))]
)
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def fenced(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def check_manifests(text: str) -> None:
    """Every object of ours in a text can be applied."""
    models = {KIND: LLMService, llmbenchmark.KIND: LLMBenchmark}
    for document in yaml.safe_load_all(text):
        model = models.get(document.get("kind")) if isinstance(document, dict) else None
        if model is not None:
            model.parse(document)


def test_pages_of_figures_stay_readable() -> None:
    longest = {ROOT / "CHANGELOG.md": 60, ROOT / "docs" / "benchmarks.md": 150}
    longest |= dict.fromkeys((ROOT / "docs" / "benchmarks").glob("*.md"), 350)
    for page, lines in longest.items():
        assert len(page.read_text().splitlines()) <= lines, page_name(page)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_make_targets_that_are_mentioned_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    text = page.read_text()
    mentioned = re.findall(r"`make ([a-z-]+)", text) + re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)
    assert set(mentioned) <= targets


def test_benchmarks_that_pages_show_are_accepted_as_they_are_written() -> None:
    text = (ROOT / "docs" / "bench.md").read_text().replace("\\\n", " ")
    shown = re.findall(r"^(?:\$ )?(holdfast bench --.*)", text, re.MULTILINE)
    shown += re.findall(r"[(\s]`(holdfast bench --[^`]*)`", text)
    assert len(shown) > 5
    for command in shown:
        arguments = build_parser(["bench"]).parse_args(shlex.split(command)[1:])
        (checks.check_overlay if arguments.overlay else checks.check)(arguments)


def test_limits_that_pages_write_for_an_engine_are_valid() -> None:
    written = re.findall(r"^echo '(\{.*\})' > limits\.json", (ROOT / "docs" / "bench.md").read_text(), re.MULTILINE)
    assert [parse_limits(text).version for text in written] == [1]


def test_every_make_target_is_explained_by_make_help() -> None:
    phony = re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    assert phony
    explained = set(re.findall(r"^([a-z-]+):.*## \S", MAKEFILE, re.MULTILINE))
    assert set(phony[1].split()) == explained


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_in_the_operations_page_with_its_default(name: str) -> None:
    field = Settings.model_fields[name]
    row = re.search(rf"^\| `--{name.replace('_', '-')}` \| (.*?) \|", OPERATIONS, re.MULTILINE)
    assert row, f"--{name.replace('_', '-')} is not in the table of settings"
    if isinstance(field.default, str) and field.default:
        assert row[1].startswith(field.default)


def test_no_setting_is_described_that_does_not_exist() -> None:
    described = re.findall(r"^\| `--([a-z-]+)`", OPERATIONS, re.MULTILINE)
    assert {name.replace("-", "_") for name in described} == set(Settings.model_fields)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_says_what_to_do(reason: Reason) -> None:
    assert re.search(rf"^\| {re.escape(str(reason))} \|", OPERATIONS, re.MULTILINE)


@pytest.mark.parametrize("condition", ConditionType)
def test_every_condition_has_its_place(condition: ConditionType) -> None:
    assert re.search(rf"^### .*\b{re.escape(str(condition))}\b", OPERATIONS, re.MULTILINE)


def test_every_metric_of_the_operator_is_explained() -> None:
    metrics = [metric for metric in Telemetry().registry.collect() if metric.name.startswith("holdfast_")]
    ours = {f"{metric.name}_total" if metric.type == "counter" else metric.name for metric in metrics}
    assert ours == set(re.findall(r"^\| `(holdfast_\w+)`", OPERATIONS, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_empty_line_cuts_a_table(page: Path) -> None:
    without_code = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    tables = [part.splitlines() for part in re.split(r"\n\s*\n", without_code) if part.lstrip().startswith("|")]
    assert [rows[0] for rows in tables if not re.fullmatch(r"\s*\|[-:| ]+\|", "".join(rows[1:2]))] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_examples_in_pages_are_valid(page: Path) -> None:
    for block in fenced(page, "yaml"):
        check_manifests(block)


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda file: file.name)
def test_examples_in_files_are_valid(file: Path) -> None:
    check_manifests(file.read_text())


def test_every_dependency_is_justified() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [each for extra in project["optional-dependencies"].values() for each in extra]
    page = (ROOT / "docs" / "dependencies.md").read_text()
    rows = " ".join(re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE))
    explained = set(re.split(r"[,\s]+", rows))
    assert {re.split(r"[<>=\[]", line)[0] for line in wanted} <= explained


def test_every_dependency_is_pinned_and_no_index_is_named() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.\-]+==[\w.!+]+", pin) for pin in pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [each for extra in project["optional-dependencies"].values() for each in extra]
    normal = {re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower() for pin in pins}
    assert {re.sub(r"[-_.]+", "-", re.split(r"[<>=\[]", line)[0]).lower() for line in wanted} <= normal


def test_the_tutorial_begins_with_the_readmes_commands() -> None:
    readme = fenced(ROOT / "README.md", "sh")[0].splitlines()
    install, start = fenced(ROOT / "docs" / "tutorial.md", "sh")[:2]
    assert readme == [*install.splitlines(), start.splitlines()[0]]


def layers(text: str, separator: str) -> list[set[str]]:
    return [set(re.findall(r"\w+", layer)) for layer in text.split(separator)]


def test_every_package_has_its_layer_and_its_row_in_the_architecture() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (enforced,) = (contract["layers"] for contract in contracts if contract["name"] == "layers")
    order = layers("\n".join(enforced).replace("holdfast.", ""), "\n")
    packages = {file.parent.name for file in (ROOT / "operator" / "holdfast").glob("*/__init__.py")}
    assert set.union(*order) == packages
    for page in ("docs/architecture.md", "CONTRIBUTING.md"):
        (drawn,) = re.findall(r"^```\n(cli \| runtime.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
        assert layers(drawn, ">") == order
    rows = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE))
    assert packages | {"holdfast_engine"} <= rows
