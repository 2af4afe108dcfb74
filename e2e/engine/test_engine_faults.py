"""A fault in the plugin itself: the engine serves on as stock vLLM and says so."""

from __future__ import annotations

import concurrent.futures
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from e2e.engine.conftest import Crowd
from e2e.engine.hooks import UNTRIED, chosen, entrances, hooks
from e2e.engine.server import ADMISSION, ONE_THREAD, Answer, Prompt, Server, Settings
from e2e.engine.test_engine_plugin import LIMITS, mode
from e2e.patience import patient
from e2e.vllm.environment import REPOSITORY, Environment
from holdfast_engine.law.arithmetic import Law
from holdfast_engine.objectives.rules import UNBOUNDED, Claim, Kind, Limits, Overload, RequestClass

# One test has every fault in it.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2700)]


HARMLESS = {
    "HoldfastScheduler.__init__": "begins in a guard, as tried here",
    "HoldfastScheduler.stand_down": "what every guard falls back on",
    "DeadlineQueue.__init__": "made in the guard of the scheduler",
    "DeadlineQueue.advance": "called in the guard of the scheduler",
    "DeadlineQueue.in_arrival_order": "what the queue falls back on",
    "HoldfastStatLogger.record": "does nothing",
    "HoldfastStatLogger.log_engine_initialized": "does nothing",
    "HoldfastStatLogger.record_admission_rejection": "adds one",
    "EngineCollector.__init__": "made in the guard of the stat logger",
    "EngineCollector.describe": "an empty list",
    "EngineCollector.reject": "counts in a guard",
    "EngineCollector.classes": "called in the guard of collect",
    "EngineCollector.numbers": "called in the guard of collect",
}
TIGHT = Limits(1, LIMITS.objectives, active_sequences=2, adapt=False, overload=Overload.REJECT, max_queued_requests=2)
CROWDED = [Prompt(range(3 + each, 63 + each), 6) for each in range(8)]


def engine_outcomes(vllm: Environment, plugin: Path, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What one engine in one process did with each jump of the clock and each fault, one after the other."""
    # With a law to begin with, every rule is asked from the first steps on.
    tight = RequestClass("tight", LIMITS.objectives, priority=1, max_share=0.9)
    night = RequestClass("night", UNBOUNDED, kind=Kind.BATCH)
    law = Law(0.005, 1e-5, 1e-4, 1e-8, 0.0)
    limits = replace(LIMITS, prior=law, classes=(tight, night), claim=Claim.BODY)
    (folder / "engine-limits").write_text(limits.to_json())
    result = folder / "outcomes.json"
    variables = {
        **vllm.variables(),
        **ONE_THREAD,
        "PYTHONPATH": os.pathsep.join([str(plugin), vllm.variables()["PYTHONPATH"], str(REPOSITORY)]),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HOLDFAST_ENGINE_FOLDER": str(folder),
        "HOLDFAST_ENGINE_LIMITS": str(folder / "engine-limits"),
    }
    command = [sys.executable, "-m", "e2e.engine.everyhook", str(vllm.model), str(result)]
    done = subprocess.run(
        command, env=variables, cwd=folder, capture_output=True, text=True, check=False, timeout=patient(300.0)
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, list[dict[str, Any]]] = json.loads(result.read_text())
    return found


class Door:
    """A server whose middleware fails where it is told to."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.stock = [server.complete(prompt) for prompt in CROWDED]

    def pairs(self) -> dict[tuple[str, str], int]:
        """How often each hook is called by each entrance when nothing fails."""
        self.server.get("/fault")
        # A machine too busy to send eight at once has nobody refused, and no hook of refusals called.
        self.server.wait_for(lambda: any(each.status == 503 for each in self.crowd()), 30.0, "crowd that is refused")
        self.server.wait_for(lambda: any(map(is_stream, self.crowd())), 30.0, "stream")
        # Requests that have waited for too long are looked for once per second.
        self.server.wait_for(lambda: self._told("frontend.Frontend.end_older_than")["calls"] != {}, 20.0, "sweep")
        told = json.loads(self.server.get("/faults"))
        return {(each["hook"], entrance): calls for each in told for entrance, calls in each["calls"].items()}

    def outcome(self, hook: str, entrance: str, calls: int) -> dict[str, Any]:
        """What clients got with a fault half way through the calls, and then."""
        known = len(self.server.log)
        self.server.get(f"/fault?hook={quote(hook)}&entrance={quote(entrance)}&fails_at={math.ceil(calls / 2)}")
        first: list[Answer] = []

        def reached() -> bool:
            """How many are refused, and so how often a hook is called, differs from one crowd to the next."""
            first.extend(self.crowd())
            return bool(self._told(hook)["reached"])

        self.server.wait_for(reached, 30.0, f"call of {hook} by {entrance}")
        then = self.crowd()
        return {
            "hook": hook,
            "entrance": entrance,
            "statuses": {answer.status for answer in first},
            "later": {answer.status for answer in then},
            "same": [tokens(answer) for answer in then] == self.stock,
            "said": f"holdfast: no admission, requests go to vLLM as they come: a fault in {hook}"
            in self.server.log[known:],
        }

    def crowd(self) -> list[Answer]:
        """What eight at once get; another one is always refused as by vLLM's own caps."""
        assert self.server.ask(CROWDED[0], headers={"X-Busy": "1"}).status == 503
        streams = [number % 4 > 0 for number in range(len(CROWDED))]
        with concurrent.futures.ThreadPoolExecutor(len(CROWDED)) as pool:
            return list(pool.map(self._ask, CROWDED, streams))

    def _ask(self, prompt: Prompt, stream: bool) -> Answer:
        return self.server.ask(prompt, temperature=0, return_token_ids=True, stream=stream)

    def _told(self, hook: str) -> Any:
        return next(each for each in json.loads(self.server.get("/faults")) if each["hook"] == hook)


def is_stream(answer: Answer) -> bool:
    return answer.status == 200 and answer.text.startswith("data: ")


def tokens(answer: Answer) -> Any:
    if answer.status != 200:
        return None
    if not is_stream(answer):
        return json.loads(answer.text)["choices"][0]["token_ids"]
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [token for event in events for token in json.loads(event)["choices"][0]["token_ids"]]


@pytest.fixture(scope="module")
def outcomes(
    vllm: Environment, plugin: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    return engine_outcomes(vllm, plugin, tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def in_engine(outcomes: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return outcomes["faults"]


@pytest.fixture(scope="module")
def at_door(vllm: Environment, plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("door")
    (folder / "engine-limits").write_text(TIGHT.to_json())
    arguments = ("--middleware=e2e.engine.broken.Door",)
    with Server(Settings(vllm, folder, plugin, arguments=arguments)) as server:
        door = Door(server)
        at_once = {pair: calls for pair, calls in door.pairs().items() if pair[1].startswith("AdmissionMiddleware")}
        # What is called once per second takes a second to come by.
        wanted = chosen({pair: at_once[pair] for pair in sorted(at_once, key=lambda pair: pair[1].endswith("_sweep"))})
        return [door.outcome(*pair, calls) for pair, calls in wanted.items()]


@pytest.mark.parametrize("hook", hooks())
def test_a_fault_in_any_hook_leaves_an_engine_that_serves_as_stock_and_says_so(
    hook: str, in_engine: list[dict[str, Any]], at_door: list[dict[str, Any]]
) -> None:
    engine = [found for found in in_engine if found["hook"] == hook]
    door = [found for found in at_door if found["hook"] == hook]
    assert bool(engine or door) is (hook not in UNTRIED), "not tried, or reached after all"
    for found in engine:
        assert found["reached"], found
        assert f"RuntimeError: a fault in {hook}" in found["said"] or found["said"].endswith(f": a fault in {hook}"), (
            found
        )
        assert found["finished"], found
        assert found["compared"] >= 0.75, found
        assert found["same"], found
        assert found["conserved"], found
        assert found["stopped"], found
        if found["entrance"].startswith(("HoldfastScheduler", "DeadlineQueue")):
            assert (found["mode"], found["stock_queue"], found["stock_limits"]) == ("off", True, True), found
        # A fact less about the engine leaves the plugin at work.
        is_only_a_fact = " in engine_info: " in found["said"]
        assert found["scraped"] in ("off", "") or found["mode"] == "off" or is_only_a_fact, found
    for found in door:
        assert found["statuses"] <= {200, 503}, found
        assert found["later"] == {200}, found
        assert found["same"], found
        assert found["said"], found


def test_a_jump_of_the_wall_clock_changes_no_answer_and_turns_nothing_off(
    outcomes: dict[str, list[dict[str, Any]]],
) -> None:
    assert [found["seconds"] for found in outcomes["jumps"]] == [1e6, 5.0, -5.0, -1e6]
    for found in outcomes["jumps"]:
        assert (found["active"], found["said"]) == (True, []), found
        assert found["compared"] >= 0.75, found
        assert found["same"], found
        assert found["conserved"], found
        # Ahead, requests seem to have come before their time began: they are late, and served all the same.
        assert found["late"] > 0 or found["seconds"] < 0, found


def test_every_method_that_vllm_calls_was_come_by(
    in_engine: list[dict[str, Any]], at_door: list[dict[str, Any]]
) -> None:
    tried = {found["entrance"] for found in (*in_engine, *at_door)}
    assert set(entrances()) - tried == set(HARMLESS)


def test_a_server_whose_plugin_fails_under_load_serves_on_as_stock(
    vllm: Environment, plugin: Path, crowd: Crowd, tmp_path: Path
) -> None:
    (tmp_path / "engine-limits").write_text(LIMITS.to_json())
    fault = {"HOLDFAST_TEST_FAULT": "loop.updated"}
    settings = Settings(vllm, tmp_path, plugin, "e2e.engine.broken.Broken", (ADMISSION,), fault)
    with Server(settings) as server:
        answers, again = server.complete_all(crowd.prompts), server.complete_all(crowd.prompts[:10])
        assert mode(server) == "off"
        assert server.samples("holdfast:requests_arrived_total")[()] > 0
        assert "holdfast: off, the engine goes on as stock vLLM: RuntimeError: a fault in" in server.log
    crowd.assert_same(answers)
    crowd.assert_same(again)


def test_an_engine_that_vllm_runs_with_another_scheduler_keeps_that_one(
    vllm: Environment, plugin: Path, tmp_path: Path
) -> None:
    (tmp_path / "engine-limits").write_text(LIMITS.to_json())
    prompt = Prompt(range(3, 40), 4)
    drafts = '--speculative-config={"method":"ngram","num_speculative_tokens":2,"prompt_lookup_max":2}'
    with Server(Settings(vllm, tmp_path, plugin, arguments=(drafts, ADMISSION))) as server:
        assert len(server.complete(prompt)) == prompt.output_tokens
        assert mode(server) == "off"
        assert "holdfast: off, this engine wants vLLM's Scheduler" in server.log
