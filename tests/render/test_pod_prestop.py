"""preStop: the engine learns of it at once, and waits only when somebody may still connect."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.render.pod_module import load

PRESTOP = load("prestop")


class Sleep:
    """Remembers how long it was told to sleep."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
def drain_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "draining"
    monkeypatch.setenv("HOLDFAST_DRAIN_FILE", str(path))
    return path


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_serving_engine_is_told_and_waited_for(drain_file: Path, port: int) -> None:
    sleep = Sleep()
    PRESTOP.main(["15", str(port)], sleep)
    assert drain_file.exists()
    assert sleep.seconds == [15.0]


def test_an_engine_that_does_not_listen_yet_frees_its_gpu_at_once(drain_file: Path) -> None:
    with socket.socket() as unlistened:
        unlistened.bind(("127.0.0.1", 0))
        sleep = Sleep()
        PRESTOP.main(["15", str(unlistened.getsockname()[1])], sleep)
    assert drain_file.exists()
    assert sleep.seconds == []
