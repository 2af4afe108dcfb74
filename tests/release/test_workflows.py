"""The workflows of .github, which nobody runs here: they are valid YAML and call targets that exist."""

from __future__ import annotations

import re

import pytest
import yaml

from release.wheels import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


def test_both_workflows_are_there() -> None:
    assert [file.stem for file in WORKFLOWS] == ["ci", "release"]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_runs_make_targets_that_exist_and_says_that_it_is_not_run_by_us(file) -> None:
    text = file.read_text()
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    steps = [step for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"]]
    called = {name for step in steps for name in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))}
    assert called
    assert called <= targets
    assert "Maintained, not run by us yet" in text.splitlines()[0]
