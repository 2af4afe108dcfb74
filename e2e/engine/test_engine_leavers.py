"""What the real vLLM counts of clients that leave, by where their request is: the table of docs/engine.md."""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.engine.server import ADMISSION, Prompt, Server, Settings, samples_of
from e2e.vllm.environment import Environment
from holdfast_engine.objectives.rules import Limits, Objectives

pytestmark = pytest.mark.vllm

LIMITS = Limits(1, Objectives(ttft_seconds=60.0, tpot_seconds=60.0))
LONG = Prompt(range(3, 43), 900)
SERIES = ("arrived", "first tokens", "finished", "aborted")


@pytest.fixture(scope="module", params=["stock", "plugin"])
def server(
    request: pytest.FixtureRequest, vllm: Environment, plugin: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """An engine that runs one request at a time, stock or with the plugin."""
    folder, with_plugin = tmp_path_factory.mktemp(f"leavers-{request.param}"), request.param == "plugin"
    (folder / "engine-limits").write_text(LIMITS.to_json())
    arguments = ("--max-num-seqs=1", *((ADMISSION,) if with_plugin else ()))
    with Server(Settings(vllm, folder, plugin if with_plugin else None, arguments=arguments)) as found:
        found.complete(Prompt(range(3, 43), 2))
        yield found


def has_plugin(server: Server) -> bool:
    return bool(server.samples("holdfast:plugin_info"))


def counted(server: Server) -> dict[str, float]:
    """What the engine's series have counted, by what became of the requests."""
    page = server.get("/metrics")
    ended = samples_of(page, "vllm:request_success_total")
    found = {
        "first tokens": samples_of(page, "vllm:time_to_first_token_seconds_count")[()],
        "finished": sum(value for (reason,), value in ended.items() if reason != "abort"),
        "aborted": ended.get(("abort",), 0.0),
    }
    return found | {"arrived": samples_of(page, "holdfast:requests_arrived_total").get((), 0.0)}


def gauge(server: Server, name: str) -> float:
    return server.samples(f"vllm:num_requests_{name}")[()]


def is_empty(server: Server) -> bool:
    return gauge(server, "running") + gauge(server, "waiting") == 0


def gained(server: Server, leave: Callable[[], object]) -> dict[str, float]:
    """What the series count of a client that leaves, once the engine is empty again."""
    before = counted(server)
    leave()
    server.wait_for(lambda: is_empty(server), 60.0, "empty engine")
    after = counted(server)
    return {name: after[name] - before[name] for name in SERIES if after[name] != before[name]}


@contextlib.contextmanager
def busy(server: Server) -> Iterator[None]:
    """Another client has the only place, and leaves at the end."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        done = [False]
        other = pool.submit(server.abandon, LONG, lambda: done[0])
        try:
            server.wait_for(lambda: gauge(server, "running") == 1, 60.0, "running request")
            yield
        finally:
            done[0] = True
            other.result()


def test_a_client_that_leaves_before_its_request_is_read_is_counted_nowhere(server: Server) -> None:
    def leave() -> None:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20.0) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: it\r\nContent-Length: 999\r\n\r\n" + b'{"model": '
            )

    assert gained(server, leave) == {}


def test_a_client_that_leaves_the_queue_is_in_no_series_of_vllm(server: Server) -> None:
    with busy(server):
        before = counted(server)
        server.abandon(LONG, lambda: gauge(server, "waiting") == 1)
        server.wait_for(lambda: gauge(server, "waiting") == 0, 60.0, "empty queue")
        after = counted(server)
    assert {name: after[name] - before[name] for name in SERIES[1:]} == dict.fromkeys(SERIES[1:], 0.0)
    assert after["arrived"] - before["arrived"] == (1.0 if has_plugin(server) else 0.0)


def test_a_client_that_leaves_during_its_answer_has_a_first_token_and_no_end(server: Server) -> None:
    before = server.samples("vllm:generation_tokens_total")[()]
    found = gained(
        server,
        lambda: server.abandon(LONG, lambda: server.samples("vllm:generation_tokens_total")[()] > before + 3),
    )
    assert found == {"first tokens": 1.0} | ({"arrived": 1.0} if has_plugin(server) else {})


def test_a_client_that_stays_is_counted_everywhere(server: Server) -> None:
    found = gained(server, lambda: server.complete(Prompt(range(3, 43), 2)))
    assert found == {"first tokens": 1.0, "finished": 1.0} | ({"arrived": 1.0} if has_plugin(server) else {})
