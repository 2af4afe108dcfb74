"""How the wrapper around kubectl waits, with a program in kubectl's place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from e2e import patience
from e2e.kubectl import Kubectl, KubectlError, Timeout
from e2e.patience import PATIENCE, Promised, patient

FOUND = '{\n "metadata": {"name": "chat"}\n}'


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of shell scripts that answer in turn, the last of them for ever."""
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(f"""#!/bin/sh
cd {tmp_path}
echo "$@" >> asked
set -- answer.*
next=$(cat "$1")
[ $# -gt 1 ] && rm "$1"
eval "$next"
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def answer(folder: Path, *scripts: str) -> None:
    for number, script in enumerate(scripts):
        (folder / f"answer.{number}").write_text(script)


def test_a_deadline_is_longer_than_an_idle_machine_needs_and_a_promise_is_not() -> None:
    assert patient(20.0) == 20.0 * PATIENCE
    assert patient(Promised(20.0)) == 20.0


def test_a_watch_that_ends_before_its_time_is_begun_again(answers: Path) -> None:
    answer(answers, "echo 'net/http: TLS handshake timeout' >&2; exit 1", f"echo '{FOUND}'; exec sleep 60")
    found = Kubectl("prod").wait_for("llms", "chat", lambda _: True, 20.0)
    assert found["metadata"]["name"] == "chat"
    assert len((answers / "asked").read_text().splitlines()) == 2


def test_what_never_reached_the_api_server_is_asked_again(answers: Path) -> None:
    answer(answers, "echo 'net/http: TLS handshake timeout' >&2; exit 1", "echo scaled")
    Kubectl("prod").scale("llms", "chat", 2)
    assert len((answers / "asked").read_text().splitlines()) == 2


def test_what_kubectl_refuses_is_told_at_once(answers: Path) -> None:
    answer(answers, "echo 'the server has no resource type llms' >&2; exit 1")
    with pytest.raises(KubectlError, match="no resource type"):
        Kubectl("prod").wait_for("llms", "chat", lambda _: True, 20.0)


def test_what_never_comes_is_told_with_what_was_seen_last(answers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE", 0.01)
    answer(answers, f"echo '{FOUND}'; echo 'context deadline exceeded' >&2; exit 1")
    with pytest.raises(Timeout, match=r"(?s)a replica of llms/chat; last seen: .*chat"):
        Kubectl("prod").wait_for("llms", "chat", lambda _: False, 20.0, "a replica")
