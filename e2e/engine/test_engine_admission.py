"""Who is turned away by the real vLLM, with which words, and how that is counted. The tests run in order."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from e2e.engine.conftest import Crowd
from e2e.engine.server import ADMISSION, Answer, Prompt, Server, Settings
from e2e.engine.test_engine_plugin import LONG, counts, is_conserved, mode
from e2e.vllm.environment import Environment
from holdfast_engine.law.arithmetic import Law
from holdfast_engine.objectives.rules import Limits, Objectives, Overload

pytestmark = pytest.mark.vllm

# Two at a time, and two seconds until the first token: of forty at once most would be late. One at a time where that is
# tried: however slowly a loaded machine lets requests in, they come faster than they are served.
# The prior tells steps from a host that stands still before a law is measured.
PRIOR = Law(0.005, 1e-5, 1e-4, 1e-8, 0.0)
PATIENT = Limits(1, Objectives(60.0, 5.0), active_sequences=2, adapt=False, prior=PRIOR)
REJECT = replace(PATIENT, active_sequences=1, objectives=Objectives(2.0, 5.0), overload=Overload.REJECT)
PROMPT = Prompt(list(range(10, 410)), 40)
SLOW = replace(LONG, output_tokens=300)
# Forty of them are fewer tokens than vLLM's own limit, so that nothing but the time to their turn refuses any.
SHORT = Prompt(list(range(10, 110)), 100)
_QUEUED_TOKENS = 8000
# A dozen of them are more than that, and two of them take a second: a machine too busy to send faster does not exist.
FULL = Prompt(list(range(10, 810)), 200)


@dataclass(frozen=True)
class Unlimited:
    """A server that has no limits yet, and what it showed and answered then."""

    server: Server
    mode: str
    arrived: float
    answers: list[list[int]]


@pytest.fixture(scope="module")
def unlimited(
    vllm: Environment, plugin: Path, crowd: Crowd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Unlimited]:
    folder = tmp_path_factory.mktemp("admission")
    template = folder / "chat.jinja"
    template.write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    arguments = (ADMISSION, f"--max-num-queued-tokens={_QUEUED_TOKENS}", f"--chat-template={template}")
    with Server(Settings(vllm, folder, plugin, arguments=arguments)) as found:
        answers = found.complete_all(crowd.prompts[:10])
        yield Unlimited(found, mode(found), found.samples("holdfast:requests_arrived_total")[()], answers)


@pytest.fixture(scope="module")
def server(unlimited: Unlimited) -> Server:
    """The same with limits."""
    found = unlimited.server
    found.set_limits(PATIENT.to_json())
    found.wait_for(lambda: mode(found) == "active", 20.0, "active plugin")
    found.ask_all([PROMPT] * 8)
    return found


def apply(server: Server, limits: Limits) -> None:
    """These limits, as the next version."""
    version = int(server.samples("holdfast:limits")[("version",)]) + 1
    server.set_limits(replace(limits, version=version).to_json())
    server.wait_for(lambda: server.samples("holdfast:limits")[("version",)] == version, 20.0, "new limits")


def waiting(server: Server) -> float:
    return sum(server.samples("holdfast:requests_waiting").values())


def rejected(server: Server) -> float:
    return server.samples("holdfast:requests_bad_total")[("rejected",)]


def refused(answers: list[Answer]) -> list[Answer]:
    """Those that were turned away, each with a time to come again."""
    found = [answer for answer in answers if answer.status == 503]
    assert len(found) + sum(answer.status == 200 for answer in answers) == len(answers)
    assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in found)
    return found


def test_without_limits_the_engine_is_stock_and_waits_for_them(unlimited: Unlimited, crowd: Crowd) -> None:
    assert (unlimited.mode, unlimited.arrived) == ("waiting", 0)
    crowd.assert_same(unlimited.answers)


@pytest.mark.parametrize(("path", "stream"), [("/v1/completions", False), ("/v1/chat/completions", True)])
def test_who_would_be_late_gets_a_503_and_a_time(server: Server, path: str, stream: bool) -> None:
    apply(server, PATIENT)
    long = replace(SHORT, output_tokens=400)
    # How fast prompts have their turn follows from the answers of late.
    server.ask_all([long] * 8)
    apply(server, REJECT)
    before = counts(server)
    bad, own = rejected(server), server.samples("vllm:admission_rejections_total")[("max_num_queued_tokens",)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        crowd = pool.submit(server.ask_all, [long] * 30, path=path, stream=stream)
        # Those that come within one step all find an empty queue; whoever comes then does not.
        server.wait_for(lambda: waiting(server) > 0 or rejected(server) > bad, 20.0, "queue")
        last = server.ask_all([SHORT] * 10, path=path, stream=stream)
        found = refused([*crowd.result(), *last])
    print(f"{len(found)} of 40 turned away; come again after {sorted({each.headers['retry-after'] for each in found})}")
    assert 1 <= len(found) <= 39
    assert all("first token would come later" in json.loads(each.text)["error"]["message"] for each in found)
    server.wait_for(lambda: counts(server)["unjudged"] == 0, 10, "judgement of all requests")
    after = counts(server)
    assert rejected(server) - bad == len(found)
    assert server.samples("vllm:admission_rejections_total")[("max_num_queued_tokens",)] - own == len(found)
    assert after["arrived"] - before["arrived"] == 40
    assert is_conserved(after)


def test_who_comes_when_it_is_quiet_is_served(server: Server) -> None:
    assert server.ask(PROMPT).status == 200
    assert mode(server) == "active"


def test_n_answers_count_as_n_requests(server: Server) -> None:
    before = counts(server)["arrived"]
    assert len(json.loads(server.ask(replace(PROMPT, output_tokens=4), n=3, temperature=1.0).text)["choices"]) == 3
    assert counts(server)["arrived"] - before == 3


def test_vllms_own_503_gets_a_time_too(server: Server) -> None:
    apply(server, PATIENT)
    bad, arrived = rejected(server), counts(server)["arrived"]
    found = refused(server.ask_all([FULL] * 30))
    assert found
    assert all("prefill token backlog" in each.text for each in found)
    assert rejected(server) - bad == len(found)
    assert counts(server)["arrived"] - arrived == 30


def test_beyond_the_depth_nobody_waits(server: Server) -> None:
    apply(server, replace(PATIENT, max_queued_requests=4))
    found = refused(server.ask_all([SLOW] * 20))
    assert 10 <= len(found) <= 17
    assert all("Too many requests" in each.text for each in found)
    server.wait_for(lambda: counts(server)["unjudged"] == 0, 20, "judgement of all requests")
    assert is_conserved(counts(server))


@pytest.mark.parametrize("stream", [False, True])
def test_who_waits_for_too_long_is_told_so_and_counted_as_bad(server: Server, stream: bool) -> None:
    limits = replace(PATIENT, objectives=Objectives(0.5, 5.0), active_sequences=1, max_queued_seconds=1.0)
    apply(server, limits)
    before = server.samples("holdfast:requests_bad_total")[("ttft",)]
    answers = server.ask_all([SLOW] * 8, stream=stream)
    ended = [answer for answer in answers if "waited 1 s" in answer.text]
    assert 1 <= len(ended) <= 7
    # Headers of a stream have gone out before.
    assert all(answer.status == (200 if stream else 503) for answer in ended)
    assert all('"code": 503' in answer.text or '"code":503' in answer.text for answer in ended)
    server.wait_for(lambda: counts(server)["unjudged"] == 0, 10, "judgement of all requests")
    assert server.samples("holdfast:requests_bad_total")[("ttft",)] - before >= len(ended)
    assert is_conserved(counts(server))
    server.wait_for(lambda: server.samples("vllm:num_requests_waiting")[()] == 0, 10, "queue that is empty")
    assert "no admission" not in server.log


def test_an_error_for_one_answer_of_several_ends_them_all(server: Server) -> None:
    answers = server.ask_all([SLOW] * 4, n=2, temperature=1.0)
    assert any("waited 1 s" in answer.text for answer in answers)
    server.wait_for(lambda: counts(server)["unjudged"] == 0, 20, "judgement of all requests")
    assert is_conserved(counts(server))
    assert server.ask(PROMPT).status == 200


def test_in_overload_answers_end_their_connections(server: Server) -> None:
    # Far above a step of any machine, and far below the turn of the last of six.
    apply(server, replace(PATIENT, objectives=Objectives(2.0, 5.0), active_sequences=1))
    server.wait_for(lambda: counts(server)["unjudged"] == 0, 20, "judgement of all requests")
    assert server.connection_after(PROMPT) is None
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        slow = [pool.submit(server.ask, SLOW) for _ in range(6)]
        server.wait_for(lambda: server.samples("holdfast:requests_waiting")[("late",)] > 0, 20, "late request")
        assert server.connection_after(PROMPT) == "close"
        assert [each.result().status for each in slow] == [200] * 6
    server.wait_for(lambda: counts(server)["unjudged"] == 0, 20, "judgement of all requests")
    assert is_conserved(counts(server))


@pytest.mark.parametrize("field", ["header", "body"])
def test_no_name_that_a_client_sends_jumps_the_queue_or_leaves_the_counts(server: Server, field: str) -> None:
    apply(server, replace(PATIENT, max_queued_requests=4))
    before, name = counts(server), "holdfast-warm-up"
    claims = {"headers": {"X-Request-Id": name}} if field == "header" else {"request_id": name}
    answers = server.ask_all([SLOW] * 20, **claims)
    server.wait_for(lambda: counts(server)["unjudged"] == 0, 20, "judgement of all requests")
    assert 10 <= len(refused(answers)) <= 17
    assert counts(server)["arrived"] - before["arrived"] == 20
    assert is_conserved(counts(server))


def test_requests_of_one_name_are_counted_apart(server: Server) -> None:
    apply(server, PATIENT)
    before = counts(server)["arrived"]
    answers = server.ask_all([PROMPT] * 4, headers={"X-Request-Id": "one"}, request_id="one")
    assert [answer.status for answer in answers] == [200] * 4
    server.wait_for(lambda: counts(server)["unjudged"] == 0, 20, "judgement of all requests")
    assert counts(server)["arrived"] - before == 4
    assert is_conserved(counts(server))
