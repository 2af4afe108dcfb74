"""The real vLLM serves batch in what interactive requests leave: it gives way at once, and its answers stay whole."""

from __future__ import annotations

import concurrent.futures
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.engine.batch import BATCH, NIGHT, SEQUENCES, SHORT, engine_with_batch, total
from e2e.engine.server import Answer, Prompt, Server
from e2e.vllm.environment import Environment
from holdfast_engine.objectives.rules import Limits, Objectives

pytestmark = pytest.mark.vllm

LONG = [Prompt(range(3 + each, 303 + each), 200) for each in range(3 * SEQUENCES)]
GRAMMAR = {"structured_outputs": {"regex": "(w[0-9]+)+"}}
AGE_SECONDS = 2.0


@pytest.fixture(scope="module")
def server(vllm: Environment, plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with engine_with_batch(vllm, plugin, tmp_path_factory.mktemp("batch")) as found:
        yield found


def tokens_of(text: str) -> list[int]:
    found: list[int] = json.loads(text)["choices"][0]["token_ids"]
    return found


def batch_now(server: Server, state: str) -> float:
    return server.samples("holdfast:batch_requests").get((state,), 0.0)


def batch_sum(server: Server, term: str) -> float:
    return server.samples("holdfast:batch_sums_total").get((term,), 0.0)


def asked_beside_batch(
    server: Server, of_batch: dict[str, Any], of_others: dict[str, Any]
) -> tuple[list[Answer], int, list[Answer]]:
    """Answers to interactive requests while batch waits, how many of batch had not ended then, and those of batch."""
    with concurrent.futures.ThreadPoolExecutor(len(LONG)) as pool:
        flood = [pool.submit(server.ask, prompt, headers=BATCH, **of_batch) for prompt in LONG]
        server.wait_for(lambda: batch_now(server, "running") >= SEQUENCES - 1, 60.0, "batch on all sequences")
        server.wait_for(lambda: batch_now(server, "waiting") > 0, 20.0, "batch that waits")
        began = time.monotonic()
        answers = server.ask_all([SHORT] * SEQUENCES, **of_others)
        seconds = time.monotonic() - began
        still = sum(not each.done() for each in flood)
        print(f"{SEQUENCES} requests took {seconds:.2f} s; {still} of {len(LONG)} batch requests were not done then")
        return answers, still, [each.result() for each in flood]


def answers_where_batch_gives_way(
    server: Server, of_batch: dict[str, Any], of_others: dict[str, Any]
) -> tuple[list[Answer], list[Answer]]:
    """Answers to interactive requests and to batch, of up to three rounds.

    Batch goes on while a busy machine lets our clients stand still: in one of the rounds they are served before it.
    """
    answers, texts = [], []
    for _ in range(3):
        found, still, batch = asked_beside_batch(server, of_batch, of_others)
        answers += found
        texts += batch
        if still > len(LONG) - SEQUENCES:
            return answers, texts
    raise AssertionError("they waited for batch")


def test_interactive_requests_take_the_place_of_running_batch_and_its_answers_stay_whole(server: Server) -> None:
    alone = [server.complete(prompt) for prompt in LONG[:2]]
    preempted = total(server, "vllm:num_preemptions_total")
    answers, texts = answers_where_batch_gives_way(server, {"temperature": 0.0, "return_token_ids": True}, {})
    asked = LONG * (len(texts) // len(LONG))
    assert {answer.status for answer in answers} == {200}
    assert total(server, "vllm:num_preemptions_total") > preempted
    assert {answer.status for answer in texts} == {200}
    assert all(len(tokens_of(answer.text)) == prompt.output_tokens for answer, prompt in zip(texts, asked, strict=True))
    assert [tokens_of(answer.text) for answer in texts[:2]] == alone
    server.wait_for(lambda: batch_sum(server, "done") == len(asked), 20.0, "counts of batch")
    assert batch_sum(server, "started") == len(asked)
    assert batch_sum(server, "started_prompt_tokens") == sum(len(prompt.tokens) for prompt in asked)


def test_prompt_and_cached_tokens_of_batch_are_those_that_vllm_counts(server: Server) -> None:
    counted = {
        "started_prompt_tokens": "vllm:prompt_tokens_total",
        "cached_prompt_tokens": "vllm:prefix_cache_hits_total",
    }

    def others() -> list[float]:
        return [total(server, metric) - batch_sum(server, term) for term, metric in counted.items()]

    before, cached, done = others(), batch_sum(server, "cached_prompt_tokens"), batch_sum(server, "done")
    server.ask_all([Prompt(LONG[0].tokens, 4)] * 4, headers=BATCH)
    server.wait_for(lambda: batch_sum(server, "done") == done + 4, 20.0, "counts of batch")
    server.wait_for(lambda: others() == before, 20.0, "counts of vLLM")
    assert batch_sum(server, "cached_prompt_tokens") > cached


@pytest.mark.parametrize(("of_batch", "of_others"), [({}, GRAMMAR), (GRAMMAR, {}), (GRAMMAR, GRAMMAR)])
def test_batch_gives_way_whoever_has_a_grammar(
    server: Server, of_batch: dict[str, Any], of_others: dict[str, Any]
) -> None:
    assert server.ask(SHORT, **GRAMMAR).status == 200, "it is compiled by now"
    answers, texts = answers_where_batch_gives_way(server, of_batch, of_others)
    assert {answer.status for answer in (*answers, *texts)} == {200}


def test_batch_is_counted_under_names_of_its_own_and_is_in_no_other_count(server: Server) -> None:
    server.wait_for(lambda: batch_now(server, "running") == 0, 20.0, "end of batch")
    arrived = server.samples("holdfast:requests_arrived_total")
    before, own = server.samples("holdfast:batch_requests_arrived_total")[("night",)], sum(arrived.values())
    server.ask_all([SHORT] * 4, headers=BATCH)
    server.wait_for(
        lambda: server.samples("holdfast:batch_requests_arrived_total")[("night",)] == before + 4, 20.0, "batch"
    )
    ended = server.samples("holdfast:batch_requests_ended_total")
    assert ended[("night", "done")] == before + 4
    assert total(server, "holdfast:requests_arrived_total") == own
    assert total(server, "holdfast:requests_bad_total") == 0


def test_batch_waits_for_longer_than_any_other_request_may(server: Server) -> None:
    one = Limits(7, Objectives(1.0, 60.0), active_sequences=1, adapt=False, classes=(NIGHT,))
    server.set_limits(replace(one, max_queued_seconds=AGE_SECONDS).to_json())
    server.wait_for(lambda: server.samples("holdfast:limits")[("version",)] == 7.0, 20.0, "new limits")
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        flood = [pool.submit(server.ask, Prompt(prompt.tokens, 700)) for prompt in LONG[:6]]
        server.wait_for(lambda: total(server, "vllm:num_requests_running") > 0, 20.0, "start")
        night = [pool.submit(server.ask, SHORT, headers=BATCH) for _ in range(3)]
        assert {each.result().status for each in flood} == {200, 503}
        assert [each.result().status for each in night] == [200] * 3


def test_nothing_failed(server: Server) -> None:
    assert "holdfast: no admission" not in server.log
    assert "holdfast: off" not in server.log
