"""The real vLLM judges requests by the times at which its API server wrote their bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.engine.server import ADMISSION, Prompt, Server, Settings
from e2e.engine.slowfront import HELD_SECONDS
from e2e.engine.test_engine_plugin import LONG, arrived, counts, is_conserved
from e2e.vllm.environment import Environment
from holdfast_engine.objectives.rules import Limits, Objectives

pytestmark = pytest.mark.vllm

LIMITS = Limits(1, Objectives(ttft_seconds=HELD_SECONDS - 1.0, tpot_seconds=5.0))
PROMPTS = [Prompt(range(3 + each, 43 + each), 8) for each in range(8)]


@pytest.fixture(scope="module")
def server(vllm: Environment, plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("client-times")
    (folder / "engine-limits").write_text(LIMITS.to_json())
    template = folder / "chat.jinja"
    template.write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    arguments = (ADMISSION, "--middleware=e2e.engine.slowfront.SlowFront", f"--chat-template={template}")
    with Server(Settings(vllm, folder, plugin, arguments=arguments)) as found:
        # An engine's first steps take seconds on a machine that has other work.
        for path in ("/v1/completions", "/v1/chat/completions"):
            found.ask_all(PROMPTS, path=path, stream=True)
        judged(found)
        yield found


def judged(server: Server) -> dict[str, float]:
    """The counts when no verdict is open."""
    server.wait_for(lambda: counts(server)["unjudged"] == 0, 20.0, "judgement of all requests")
    found = counts(server)
    assert is_conserved(found)
    return found


def are_client_times(server: Server) -> bool:
    return server.samples("holdfast:client_times")[()] == 1.0


def lags(server: Server, token: str) -> float:
    return server.samples("holdfast:front_end_lag_seconds_count")[(token,)]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_streams_are_judged_by_the_times_of_their_bytes(server: Server, path: str) -> None:
    before, first, last = counts(server), lags(server, "first"), lags(server, "last")
    answers = server.ask_all(PROMPTS, path=path, stream=True)
    assert all(answer.status == 200 and answer.text.endswith("data: [DONE]\n\n") for answer in answers)
    assert judged(server)["good"] - before["good"] == len(PROMPTS)
    assert are_client_times(server)
    assert lags(server, "first") - first == len(PROMPTS)
    assert lags(server, "last") - last == len(PROMPTS)
    lag = server.samples("holdfast:front_end_lag_seconds_sum")[("first",)] / lags(server, "first")
    print(f"mean lag of first tokens {1000 * lag:.1f} ms")
    assert 0.0 < lag < 1.0


def test_a_first_token_that_the_api_server_writes_late_is_bad(server: Server) -> None:
    before = judged(server)
    late = server.samples("holdfast:requests_bad_total")[("ttft",)]
    answer = server.ask(PROMPTS[0], headers={"X-Slow": "1"}, stream=True)
    assert answer.status == 200
    after = judged(server)
    assert after["good"] == before["good"]
    assert server.samples("holdfast:requests_bad_total")[("ttft",)] == late + 1
    assert server.samples("vllm:time_to_first_token_seconds_count")[()] > 0
    assert are_client_times(server)


def test_decisions_set_aside_half_of_the_bound_at_most(server: Server) -> None:
    lag = server.samples("holdfast:front_end_lag_estimate_seconds")[()]
    assert 0.0 < lag <= 0.5 * LIMITS.objectives.ttft_seconds


def test_a_client_that_leaves_in_the_middle_is_counted_once(server: Server) -> None:
    before = arrived(server)
    assert server.abandon(LONG, once=lambda: arrived(server) > before)
    assert judged(server)["arrived"] == before + 1


def test_answers_that_come_as_a_whole_are_judged_by_the_engine_and_it_is_said(server: Server) -> None:
    before = judged(server)["good"]
    answers = server.ask_all(PROMPTS)
    assert all("choices" in json.loads(answer.text) for answer in answers)
    assert judged(server)["good"] == before + len(PROMPTS)
    assert not are_client_times(server)


def test_nothing_failed(server: Server) -> None:
    assert "holdfast: no admission" not in server.log
    assert "holdfast: off" not in server.log
