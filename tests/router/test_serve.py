"""The process of a router: what it starts, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from holdfast.cli.main import build_parser
from holdfast.router.options import Options
from holdfast.router.serve import serve

CHILD = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("drained", file=open(sys.argv[1], "a")), sys.exit(0)))
print("started", file=open(sys.argv[1], "a"), flush=True)
signal.pause()
"""


def options(linger_seconds: float) -> Options:
    """A router that nothing listens for."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return Options("replicas.invalid", port=taken.getsockname()[1], linger_seconds=linger_seconds)


async def test_the_router_takes_requests_for_a_while_after_sigterm_and_then_drains(tmp_path: Path) -> None:
    told = tmp_path / "told"
    serving = asyncio.create_task(serve(options(0.3), (sys.executable, "-c", CHILD, str(told))))
    while not (told.exists() and told.read_text()):
        await asyncio.sleep(0.01)
    asked_at = time.monotonic()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await serving == 0
    assert time.monotonic() - asked_at >= 0.3
    assert told.read_text() == "started\ndrained\n"


async def test_a_router_that_ends_by_itself_ends_the_pod_with_its_status() -> None:
    assert await serve(options(60.0), (sys.executable, "-c", "raise SystemExit(3)")) == 3


@pytest.mark.parametrize(
    "wrong", [["--port=0"], ["--port=-1"], ["--linger=nan"], ["--linger=-1"], ["--replica-port=x"]]
)
def test_a_wrong_option_is_named(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["route", "--replicas=chat-replicas.prod.svc", *wrong])
    assert wrong[0].partition("=")[0] in capsys.readouterr().err
