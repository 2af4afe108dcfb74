"""A real vLLM whose engine stops in the middle of everything: what its API server says of its health."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.engine.server import Prompt, Server, Settings
from e2e.vllm.environment import REPOSITORY, Environment
from holdfast_engine.objectives.rules import Limits, Objectives

pytestmark = pytest.mark.vllm

POD_FILES = REPOSITORY / "operator" / "holdfast" / "render" / "pod"
HANG_SECONDS = 30.0  # longer than a host keeps its cores to itself at a time
PROMPT = Prompt(list(range(10, 110)), 40)


@pytest.fixture(scope="module")
def server(vllm: Environment, plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("hangs")
    (folder / "engine-limits").write_text(Limits(1, Objectives(60.0, 5.0)).to_json())
    variables = {
        "PYTHONPATH": os.pathsep.join([str(POD_FILES), vllm.variables()["PYTHONPATH"]]),
        "HOLDFAST_HANG_SECONDS": str(HANG_SECONDS),
    }
    arguments = ("--middleware=holdfast_middleware.ReadyAndBalance",)
    with Server(Settings(vllm, folder, plugin, arguments=arguments, variables=variables)) as found:
        found.complete(PROMPT)
        yield found


def health(server: Server) -> int:
    try:
        server.get("/health")
    except urllib.error.HTTPError as answer:
        return answer.code
    return 200


@pytest.mark.parametrize("busy", [False, True])
def test_a_stopped_engine_is_unhealthy_until_it_goes_on_and_nothing_is_lost(server: Server, busy: bool) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        before = [pool.submit(server.complete, Prompt(PROMPT.tokens, 800)) for _ in range(3 * busy)]
        if busy:
            server.wait_for(lambda: sum(server.samples("vllm:num_requests_running").values()) > 0, 20.0, "request")
        server.signal_core(signal.SIGSTOP)
        try:
            after = pool.submit(server.complete, PROMPT)
            seconds = server.wait_for(lambda: health(server) == 503, 2.0 * HANG_SECONDS, "sign of the hang")
            assert seconds >= 0.5 * HANG_SECONDS, "its last step may be a while ago on a busy machine"
        finally:
            server.signal_core(signal.SIGCONT)
        server.wait_for(lambda: health(server) == 200, 30.0, "health")
        assert all(len(each.result()) > 0 for each in (*before, after))


def test_an_engine_that_works_or_idles_is_healthy(server: Server) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        under_way = [pool.submit(server.complete, Prompt(PROMPT.tokens, 900)) for _ in range(2)]
        while not all(each.done() for each in under_way):
            assert health(server) == 200
    assert health(server) == 200
