"""A prefill and a decode engine of the real vLLM with NIXL between them: counts, times and answers."""

from __future__ import annotations

import concurrent.futures
import random
import signal
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.engine.conftest import Crowd, stock_crowd
from e2e.engine.prefilldecode import Answer, Pair, running_pair
from e2e.engine.server import Prompt, Server
from e2e.patience import patient
from e2e.vllm.environment import Environment
from e2e.vllm.model import VOCABULARY
from holdfast_engine.objectives.rules import Limits, Objectives, Role

pytestmark = pytest.mark.vllm

REQUESTS, AT_ONCE = 60, 8
LEAVES = {"prefill": 2, "between": 2, "decode": 2}
"""So many clients hang up there."""
LONGEST_WAY_SECONDS = 5.0
"""Of a request from one engine to the other: a machine that is two seconds slower leaves some in time and some late."""
TOLERANCE_SECONDS = patient(0.1)
"""Between a client and the engines: what it needs to send, and to see, a byte."""
LEASE_SECONDS, EXPIRED = 10, 4
LIMITS = {role: Limits(1, Objectives(ttft_seconds=60.0, tpot_seconds=60.0), role=role) for role in Role}
COUNTS = ("arrived_total", "good_total", "withdrawn_total", "unjudged", "handed_over_total", "received_total")


@pytest.fixture(scope="module")
def pair(vllm: Environment, plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(vllm, plugin, tmp_path_factory.mktemp("pair"), LIMITS, LEASE_SECONDS) as found:
        found.answer(Prompt(range(3, 43), 2))  # the two of them have met
        yield found


@pytest.fixture(scope="module")
def crowd(pair: Pair) -> Crowd:
    """What one engine answers that does all by itself."""
    draw = random.Random(11)
    prompts = [
        Prompt([draw.randrange(3, VOCABULARY) for _ in range(draw.choice((20, 200, 400)))], draw.choice((4, 24)))
        for _ in range(REQUESTS)
    ]
    return stock_crowd(pair.prefill, prompts)


def counts(server: Server) -> dict[str, float]:
    """Those of the service's own class, and all bad ones."""
    found = {name: server.samples(f"holdfast:requests_{name}").get((), 0.0) for name in COUNTS}
    return found | {"bad": sum(server.samples("holdfast:requests_bad_total").values())}


def gained(server: Server, before: dict[str, float]) -> dict[str, float]:
    """What was counted since then, once all is judged."""
    server.wait_for(lambda: counts(server)["unjudged"] == 0, 20.0, "verdicts")
    return {name.removesuffix("_total"): count - before[name] for name, count in counts(server).items()}


def leave_prefill(pair: Pair, prompts: list[Prompt]) -> None:
    """Hang up on an engine that stands still, so that it has answered none of them."""
    aborted = pair.prefill.log.count(" aborted.")
    asked = counts(pair.prefill)["arrived_total"] + len(prompts)
    received = pair.prefill.log.count("Received request ") + len(prompts)
    pair.prefill.signal_core(signal.SIGSTOP)
    try:
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            is_there = lambda: pair.prefill.log.count("Received request ") >= received  # noqa: E731
            list(pool.map(lambda prompt: pair.leave_prefill(prompt, is_there), prompts))
        pair.prefill.wait_for(lambda: pair.prefill.log.count(" aborted.") == aborted + len(prompts), 20.0, "aborts")
    finally:
        pair.prefill.signal_core(signal.SIGCONT)
    pair.prefill.wait_for(lambda: counts(pair.prefill)["arrived_total"] == asked, 20.0, "arrivals")


def bound_that_half_of_the_clients_see(pair: Pair, prompts: list[Prompt]) -> float:
    """Put it into force, on a quiet machine and on a busy one (s)."""
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        waited = [each.ttft_seconds or 0.0 for each in pool.map(pair.answer, prompts)]
    bound = statistics.median(waited) + LONGEST_WAY_SECONDS / 2
    limits = replace(LIMITS[Role.DECODE], version=2, objectives=Objectives(bound, tpot_seconds=60.0))
    pair.decode.set_limits(limits.to_json())
    pair.decode.wait_for(lambda: pair.decode.samples("holdfast:limits")[("version",)] == 2, 20.0, "new limits")
    return bound


def play(pair: Pair, prompts: list[Prompt]) -> list[Answer]:
    """What the clients saw, some of which hang up."""
    draw = random.Random(3)
    ways = [draw.uniform(0.0, LONGEST_WAY_SECONDS) for _ in prompts]

    def ask(number: int) -> Answer:
        if number < LEAVES["between"]:
            pair.compute(prompts[number])
            return Answer()
        leaves = number < LEAVES["between"] + LEAVES["decode"]
        return pair.answer(prompts[number], 0.0 if leaves else ways[number], 1 if leaves else None)

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ask, range(len(prompts))))


def test_counts_and_first_tokens_of_a_pair_are_those_of_its_clients(pair: Pair, crowd: Crowd) -> None:
    bound = bound_that_half_of_the_clients_see(pair, crowd.prompts[: 2 * AT_ONCE])
    before = counts(pair.prefill), counts(pair.decode)
    leave_prefill(pair, crowd.prompts[-LEAVES["prefill"] :])
    answers = play(pair, crowd.prompts[: -LEAVES["prefill"]])
    first, second = gained(pair.prefill, before[0]), gained(pair.decode, before[1])
    sent_on = REQUESTS - LEAVES["prefill"]
    received, waited = sent_on - LEAVES["between"], [each.ttft_seconds for each in answers if each.ttft_seconds]
    surely, possibly = (sum(each <= bound + more for each in waited) for more in (0.0, TOLERANCE_SECONDS))
    print(f"prefill {first}; decode {second}; clients saw {surely} to {possibly} in time, within {bound:.2f} s")
    expected = {"arrived": REQUESTS, "good": 0, "bad": 0, "withdrawn": LEAVES["prefill"], "unjudged": 0}
    assert first == {**expected, "handed_over": sent_on, "received": 0}
    assert second | {"good": 0, "bad": 0} == {
        **dict.fromkeys(first, 0),
        "arrived": received,
        "received": received,
    }
    assert second["good"] + second["bad"] == received
    assert 0.1 * received < surely <= second["good"] <= possibly
    whole = slice(LEAVES["between"] + LEAVES["decode"], None)
    crowd.assert_same([each.tokens for each in answers[whole]], first=whole.start)


def test_no_answer_comes_from_blocks_whose_lease_is_over(pair: Pair, crowd: Crowd) -> None:
    read, expired = "vllm:nixl_xfer_time_seconds_count", "holdfast:kv_expired_total"
    prompts = crowd.prompts[:EXPIRED]
    told = [(pair.compute(prompt), time.monotonic()) for prompt in prompts]
    time.sleep(LEASE_SECONDS + 1)
    # Others have these blocks now.
    pair.prefill.complete_all(crowd.prompts[EXPIRED:])
    before = {name: pair.decode.samples(name)[()] for name in (read, expired)}
    answers = [pair.read(prompt, *each) for prompt, each in zip(prompts, told, strict=True)]
    crowd.assert_same([each.tokens for each in answers])
    pair.decode.wait_for(lambda: pair.decode.samples(expired)[()] == before[expired] + EXPIRED, 5.0, "expired leases")
    assert pair.answer(prompts[0]).tokens == answers[0].tokens
    pair.decode.wait_for(lambda: pair.decode.samples(read)[()] > before[read], 20.0, "read blocks")
    assert pair.decode.samples(read)[()] == before[read] + 1


def test_nothing_failed(pair: Pair) -> None:
    for server in (pair.prefill, pair.decode):
        assert "holdfast: no admission" not in server.log
        assert "holdfast: off" not in server.log
