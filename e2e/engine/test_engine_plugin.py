"""The plugin in the real vLLM behind each front end: ready by a token, same answers, exact counts, live limits.

The tests run in order, those of one front end after those of another.
"""

from __future__ import annotations

import concurrent.futures
import json
import signal
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from prometheus_client import parser
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics

from e2e.engine.conftest import Crowd
from e2e.engine.pod import READY, FrontEnd, Pod
from e2e.engine.server import Prompt, Server, Settings, samples_of
from e2e.limits import APPLY_SECONDS
from e2e.vllm.environment import Environment
from holdfast.observe.series.queries import CACHE_CONFIG, ENGINE_INFO
from holdfast.observe.series.samples import Sample
from holdfast.observe.signals.engine_facts import engine_facts
from holdfast_engine.law.model_figures import model_figures
from holdfast_engine.objectives.limits import LOOK_SECONDS
from holdfast_engine.objectives.rules import Limits, Objectives

pytestmark = pytest.mark.vllm

LIMITS = Limits(version=1, objectives=Objectives(ttft_seconds=20.0, tpot_seconds=5.0))
LONG = Prompt(list(range(10, 110)), 800)


@dataclass
class Engine:
    """The pod with the plugin, and what the first two hundred requests got."""

    server: Pod
    answers: list[list[int]]
    counted: dict[str, float]


@pytest.fixture(scope="module", params=FrontEnd, ids=lambda front_end: front_end.name.lower())
def engine(
    request: pytest.FixtureRequest,
    vllm: Environment,
    plugin: Path,
    crowd: Crowd,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Engine]:
    """One pod for all tests of this file."""
    folder = tmp_path_factory.mktemp("engine")
    (folder / "engine-limits").write_text(LIMITS.to_json())
    settings = Settings(vllm, folder, plugin, variables={"HOLDFAST_HANG_SECONDS": "2"}, spawns=True)
    with Pod(settings, request.param) as server:
        server.wait_for(server.is_ready, 60.0, "token of the pod's own")
        assert arrived(server) == 0, "the pod's own token is in the counts"
        answers = server.complete_all(crowd.prompts)
        yield Engine(server, answers, counts(server))


def counts(server: Server) -> dict[str, float]:
    """Requests by what became of them."""
    page = server.get("/metrics")
    return {
        "arrived": samples_of(page, "holdfast:requests_arrived_total")[()],
        "good": samples_of(page, "holdfast:requests_good_total")[()],
        "bad": sum(samples_of(page, "holdfast:requests_bad_total").values()),
        "withdrawn": samples_of(page, "holdfast:requests_withdrawn_total")[()],
        "unjudged": samples_of(page, "holdfast:requests_unjudged")[()],
    }


def families(server: Server) -> list[Metric]:
    """Its page, read in the format that it is in: in the older one no other is allowed behind its end."""
    page = server.get("/metrics")
    read = openmetrics if page.endswith("# EOF\n") else parser
    return list(read.text_string_to_metric_families(page))


def arrived(server: Server) -> float:
    """Requests that the engine has heard of, from the start on."""
    return server.samples("holdfast:requests_arrived_total").get((), 0.0)


def is_conserved(found: dict[str, float]) -> bool:
    return found["arrived"] == found["good"] + found["bad"] + found["withdrawn"] + found["unjudged"]


def mode(server: Server) -> str:
    return next(iter(server.samples("holdfast:plugin_info")))[0]


def test_the_plugin_is_active_and_says_in_what(engine: Engine) -> None:
    assert next(iter(engine.server.samples("holdfast:plugin_info"))) == ("active", "0.1.0", "0.32.0")
    assert "holdfast: off" not in engine.server.log


def test_the_operator_reads_how_it_was_started_its_model_and_its_kv_cache(engine: Engine, vllm: Environment) -> None:
    rows = [
        Sample(found.labels | {"metric": found.name.partition(":")[2], "holdfast_accelerator": "cpu"}, found.value)
        for family in families(engine.server)
        for found in family.samples
        if found.name in (f"vllm:{CACHE_CONFIG}", f"holdfast:{ENGINE_INFO}")
    ]
    (((_, facts),),) = engine_facts(rows).values()
    print(facts)
    assert facts.kv_tokens is not None
    assert facts.kv_tokens > 1024
    assert (facts.dtype, facts.quantization, facts.max_model_len) == ("float32", "none", 1024)
    # --enforce-eager: no graphs.
    assert (facts.parallel_gpus, facts.graph_edge_tokens, facts.speculative_tokens) == (1, 0, 0)
    assert facts.model == model_figures(json.loads((vllm.model / "config.json").read_text()))
    assert facts.front_end == engine.server.front_end.value
    assert 0.0 < time.time() - engine.server.samples("process_start_time_seconds")[()] < 3600.0


def test_answers_are_those_of_stock_vllm(engine: Engine, crowd: Crowd) -> None:
    crowd.assert_same(engine.answers)


def test_every_request_is_counted_once(engine: Engine, crowd: Crowd) -> None:
    assert engine.counted == {"arrived": 200, "good": 200, "bad": 0, "withdrawn": 0, "unjudged": 0}
    tokens = engine.server.samples("holdfast:good_tokens_total")[()]
    assert tokens == sum(prompt.output_tokens for prompt in crowd.prompts)
    page = engine.server.get("/metrics")
    assert sum(samples_of(page, "vllm:request_success_total").values()) == 200, "the pod's own token is vLLM's 201st"
    assert samples_of(page, "vllm:generation_tokens_total")[()] == tokens
    assert samples_of(page, "vllm:time_to_first_token_seconds_count")[()] == 200


def test_steps_are_measured_and_a_law_is_fitted(engine: Engine) -> None:
    server = engine.server
    # A host that stood still in the first seconds makes the first steps say nothing for a while.
    for _ in range(5):
        server.complete(LONG)
        if law := server.samples("holdfast:step_law"):
            break
    assert server.samples("holdfast:step_sums_total")[("one",)] > LONG.output_tokens / 2
    print("step law", law)
    assert law[("c0",)] > 0
    spent, all_steps = (
        server.samples("holdfast:plugin_seconds_total")[()],
        server.samples("holdfast:plugin_steps_total"),
    )
    print(f"the plugin took {1e6 * spent / all_steps[()]:.0f} us per step")


def abandoned(server: Server) -> tuple[dict[str, float], dict[str, float]]:
    """Counts before a client abandons a request, and once that is judged.

    Who hangs up before the engine has heard of the request has not arrived, and on a crowded machine the answer may be
    there before anybody looks.
    """
    for _ in range(5):
        before = counts(server)
        if server.abandon(LONG, once=lambda: arrived(server) > before["arrived"]):  # noqa: B023
            break
    else:
        raise AssertionError("the answer was always there")
    server.wait_for(lambda: counts(server)["unjudged"] == 0, 10, "judgement of the abandoned request")
    return before, counts(server)


def test_requests_that_clients_abandon_are_judged_once(engine: Engine) -> None:
    before, after = abandoned(engine.server)
    assert after["arrived"] == before["arrived"] + 1
    assert is_conserved(after)


def test_a_malformed_file_changes_nothing(engine: Engine) -> None:
    before = _told(engine)
    for text in ("{not json", "", '{"version": 99}', '{"version": 99, "ttftSeconds": -1, "tpotSeconds": 1}'):
        engine.server.set_limits(text)
        engine.server.complete(replace(LONG, output_tokens=100))
    assert _told(engine) == before
    assert mode(engine.server) == "active"
    assert "is left out of account" in engine.server.log


def _told(engine: Engine) -> dict[tuple[str, ...], float]:
    """The limits in force without the depth of the queue, which follows the speed that the engine measures."""
    limits = engine.server.samples("holdfast:limits")
    return {labels: value for labels, value in limits.items() if labels != ("max_queued_requests",)}


def test_new_limits_apply_to_an_idle_engine(engine: Engine) -> None:
    took = [_apply(engine.server, version, sequences) for version, sequences in ((2, 5), (3, 4), (4, 3))]
    print(f"applied after {', '.join(f'{seconds:.1f}' for seconds in took)} s")
    # One of them may meet a moment in which the host runs nothing at all.
    assert statistics.median(took) <= APPLY_SECONDS


def _apply(server: Server, version: int, sequences: int) -> float:
    """Seconds until the engine shows a new limit."""
    server.set_limits(replace(LIMITS, version=version, active_sequences=sequences, adapt=False).to_json())

    def is_shown() -> bool:
        limits = server.samples("holdfast:limits")
        return (limits[("version",)], limits[("active_sequences",)]) == (version, sequences)

    return server.wait_for(is_shown, 20.0, "new limit")


def test_older_limits_are_passed_over(engine: Engine) -> None:
    engine.server.set_limits(LIMITS.to_json())
    time.sleep(4 * LOOK_SECONDS)  # in which the file is read, and nothing tells of it
    engine.server.complete(replace(LONG, output_tokens=10))
    assert engine.server.samples("holdfast:limits")[("version",)] == 4


def test_no_more_sequences_run_than_the_limit_says(engine: Engine) -> None:
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(engine.server.complete, replace(LONG, output_tokens=200)) for _ in range(12)]
        most = 0.0
        while not all(answer.done() for answer in answers):
            most = max(most, engine.server.samples("vllm:num_requests_running")[()])
    assert all(len(answer.result()) == 200 for answer in answers)
    assert 1 <= most <= 3


def test_late_requests_are_bad_by_ttft_and_still_answered(engine: Engine, crowd: Crowd) -> None:
    prompts = crowd.prompts[:40]
    before = engine.server.samples("holdfast:requests_bad_total")[("ttft",)]
    objectives = Objectives(ttft_seconds=0.001, tpot_seconds=5.0)
    engine.server.set_limits(replace(LIMITS, version=5, objectives=objectives).to_json())
    engine.server.wait_for(lambda: engine.server.samples("holdfast:limits")[("version",)] == 5, 20.0, "new limits")
    answers = engine.server.complete_all(prompts)
    assert [len(answer) for answer in answers] == [prompt.output_tokens for prompt in prompts]
    assert engine.server.samples("holdfast:requests_bad_total")[("ttft",)] == before + 40
    assert is_conserved(counts(engine.server))
    assert mode(engine.server) == "active"


def test_who_is_turned_away_gets_a_503_and_is_counted_once_where_the_front_end_can_say_it(engine: Engine) -> None:
    server = engine.server
    server.set_limits(replace(LIMITS, version=6, active_sequences=1, adapt=False, max_queued_requests=2).to_json())
    server.wait_for(lambda: server.samples("holdfast:limits")[("version",)] == 6, 20.0, "new limits")
    before = counts(server)
    answers = server.ask_all([replace(LONG, output_tokens=200)] * 16)
    refused = [answer for answer in answers if answer.status == 503]
    assert (len(refused) > 0) is (server.front_end is not FrontEnd.RUST)
    assert len(refused) + sum(answer.status == 200 for answer in answers) == 16
    assert server.samples("holdfast:requests_bad_total")[("rejected",)] == len(refused)
    server.wait_for(lambda: counts(server)["unjudged"] == 0, 10, "judgement of all requests")
    assert counts(server)["arrived"] - before["arrived"] == 16
    assert is_conserved(counts(server))


def test_a_draining_pod_is_not_ready_and_serves_on(engine: Engine) -> None:
    server = engine.server
    server.drain_file.touch()
    server.wait_for(lambda: server.status_of(READY) == (503, "draining\n"), 5.0, "drain")
    assert len(server.complete(replace(LONG, output_tokens=3))) == 3
    server.drain_file.unlink()
    server.wait_for(server.is_ready, 5.0, "end of the drain")


def test_an_engine_that_hangs_fails_its_liveness_probe(engine: Engine) -> None:
    server = engine.server
    assert server.status_of("/health")[0] == 200
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.complete, LONG)
        server.wait_for(lambda: sum(server.samples("vllm:num_requests_running").values()) > 0, 20.0, "request")
        server.signal_core(signal.SIGSTOP)
        try:
            server.wait_for(lambda: "hung" in server.status_of("/health")[1], 20.0, "hang")
        finally:
            server.signal_core(signal.SIGCONT)
        assert len(answer.result()) == LONG.output_tokens
    assert server.status_of("/health")[0] == 200
