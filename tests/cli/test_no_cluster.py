"""Without a cluster every command says so in one line, whatever the kubeconfig holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.main import main


@pytest.mark.parametrize("text", ["", "root:x:0:0\n", "{", "[]", "apiVersion: v1\nkind: Config\n", "\x00"])
@pytest.mark.parametrize("command", [["status"], ["explain", "prod/chat"]])
def test_a_file_that_is_no_kubeconfig_is_told_in_one_line(
    command: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    assert main([*command, f"--kubeconfig={file}"]) == 1
    assert f"holdfast {command[0]}: no cluster configuration: " in capsys.readouterr().err


@pytest.mark.slow
def test_an_operator_without_a_cluster_ends_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("root:x:0:0\n")
    # A process of its own, for an operator sets up logging and signals.
    command = [sys.executable, "-m", "holdfast.cli.main", "run", "--prometheus-url=http://prometheus:9090"]
    done = subprocess.run([*command, f"--kubeconfig={file}"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "no cluster configuration: " in line
