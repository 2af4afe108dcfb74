"""What people expect of every command line: version, completion, the namespace and context of kubectl."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from holdfast.act.api import default_namespace
from holdfast.cli.main import main

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts:
- {name: here, context: {cluster: c, user: u, namespace: prod}}
- {name: there, context: {cluster: c, user: u}}
"""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    file = tmp_path / "config"
    file.write_text(KUBECONFIG)
    return file


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"holdfast {version('holdfast-operator')}\n"


@pytest.mark.parametrize(
    ("context", "expected"), [(None, "prod"), ("here", "prod"), ("there", "default"), ("no", "default")]
)
def test_the_namespace_is_that_of_the_context(context: str | None, expected: str, kubeconfig: Path) -> None:
    assert default_namespace(kubeconfig, context) == expected


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "contexts: 3", "\x00", "contexts: [{name: here}]\ncurrent-context: here"]
)
def test_a_broken_kubeconfig_has_the_namespace_default(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    assert default_namespace(file) == "default"


def test_a_context_that_does_not_exist_is_told_in_one_line(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", f"--kubeconfig={kubeconfig}", "--context=elsewhere"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("holdfast status: no cluster configuration: ")
    assert "elsewhere" in said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script_that_completes_both_programs(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    completed = [line.split() for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("comp")]
    assert {"holdfast", "kubectl-holdfast"} <= {word for line in completed for word in line}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "expected"), [("holdfast expl", "explain"), ("holdfast status --kube", "--kubeconfig")]
)
def test_commands_and_options_are_completed(line: str, expected: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "COMP_LINE": line}
    asked |= {"COMP_POINT": str(len(line)), "_ARGCOMPLETE_SHELL": "bash"}
    subprocess.run([sys.executable, "-m", "holdfast.cli.main"], env=os.environ | asked, check=True)
    assert expected in answer.read_text()
