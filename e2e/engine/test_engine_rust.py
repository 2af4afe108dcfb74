"""The plugin behind vLLM's Rust front end: ready by a token, exact counts, live limits, and who leaves."""

from __future__ import annotations

import concurrent.futures
import signal
import time
import urllib.error
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from e2e.engine.conftest import Crowd
from e2e.engine.pod import RustPod
from e2e.engine.server import Settings, samples_of
from e2e.engine.test_engine_plugin import LIMITS, LONG, Engine, abandoned, counts, is_conserved
from e2e.vllm.environment import Environment
from holdfast.observe.engine_facts import engine_facts
from holdfast.observe.queries import CACHE_CONFIG
from holdfast.observe.samples import Sample

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def engine(vllm: Environment, plugin: Path, crowd: Crowd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One server for all tests of this file; the tests run in order."""
    folder = tmp_path_factory.mktemp("rust")
    (folder / "engine-limits").write_text(LIMITS.to_json())
    with RustPod(Settings(vllm, folder, plugin, variables={"HOLDFAST_HANG_SECONDS": "2"})) as server:
        server.wait_for(lambda: is_ready(server), 60.0, "token of the pod's own")
        before = counts(server)
        assert before["arrived"] == 0, "the pod's own token is in the counts"
        answers = server.complete_all(crowd.prompts)
        yield Engine(server, answers, counts(server))


def is_ready(server: RustPod) -> bool:
    return status_of(server, "/holdfast/ready")[0] == 200


def status_of(server: RustPod, path: str) -> tuple[int, str]:
    try:
        return 200, server.get(path)
    except urllib.error.HTTPError as problem:
        return problem.code, problem.read().decode()


def test_answers_are_those_of_stock_vllm_behind_its_python_front_end(engine: Engine, crowd: Crowd) -> None:
    crowd.assert_same(engine.answers)


def test_every_request_of_clients_is_counted_once(engine: Engine, crowd: Crowd) -> None:
    assert engine.counted == {"arrived": 200, "good": 200, "bad": 0, "withdrawn": 0, "unjudged": 0}


def test_one_page_in_the_openmetrics_format_has_the_counters_of_both(engine: Engine) -> None:
    families = {family.name for family in text_string_to_metric_families(engine.server.get("/metrics"))}
    assert {"vllm:num_requests_running", "vllm:request_success", "vllm:time_to_first_token_seconds"} <= families
    assert {"holdfast:plugin_info", "holdfast:engine_info", "holdfast:requests_good"} <= families
    assert next(iter(engine.server.samples("holdfast:plugin_info"))) == ("active", "0.1.0", "0.32.0")


def test_the_operator_reads_the_kv_cache_and_the_start_of_the_engine(engine: Engine) -> None:
    page = engine.server.get("/metrics")
    rows = [
        Sample(found.labels | {"metric": CACHE_CONFIG, "holdfast_accelerator": "cpu"}, found.value)
        for family in text_string_to_metric_families(page)
        for found in family.samples
        if found.name == f"vllm:{CACHE_CONFIG}"
    ]
    (((_, facts),),) = engine_facts(rows).values()
    assert facts.kv_tokens is not None
    assert facts.kv_tokens > 1024
    assert 0.0 < time.time() - samples_of(page, "process_start_time_seconds")[()] < 3600.0


def test_new_limits_apply_while_it_serves(engine: Engine) -> None:
    server = engine.server
    server.set_limits(replace(LIMITS, version=2, active_sequences=3, adapt=False).to_json())
    server.wait_for(lambda: server.samples("holdfast:limits")[("active_sequences",)] == 3, 20.0, "new limit")


def test_who_hangs_up_is_judged_once(engine: Engine) -> None:
    before, after = abandoned(engine.server)
    assert after["arrived"] == before["arrived"] + 1
    assert is_conserved(after)


def test_a_draining_pod_is_not_ready_and_serves_on(engine: Engine) -> None:
    server = engine.server
    assert isinstance(server, RustPod)
    server.drain_file.touch()
    server.wait_for(lambda: status_of(server, "/holdfast/ready") == (503, "draining\n"), 5.0, "drain")
    assert len(server.complete(replace(LONG, output_tokens=3))) == 3
    server.drain_file.unlink()
    server.wait_for(lambda: is_ready(server), 5.0, "end of the drain")


def test_an_engine_that_hangs_fails_its_liveness_probe(engine: Engine) -> None:
    server = engine.server
    assert isinstance(server, RustPod)
    assert status_of(server, "/health")[0] == 200
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.complete, LONG)
        server.wait_for(lambda: sum(server.samples("vllm:num_requests_running").values()) > 0, 20.0, "request")
        server.signal_core(signal.SIGSTOP)
        try:
            server.wait_for(lambda: "hung" in status_of(server, "/health")[1], 20.0, "hang")
        finally:
            server.signal_core(signal.SIGCONT)
        assert len(answer.result()) == LONG.output_tokens
    assert status_of(server, "/health")[0] == 200
