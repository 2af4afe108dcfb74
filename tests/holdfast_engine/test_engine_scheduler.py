"""The plugin's scheduler over a toy of vLLM's: what fails in the middle of a step waits for the next one."""

from __future__ import annotations

import enum
import importlib
import math
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from holdfast_engine.clients.written_file import ReportKind, WrittenWriter, name_of
from holdfast_engine.fastloop import FastLoop
from holdfast_engine.objectives.handover import KEY
from holdfast_engine.objectives.rules import SERVICE_CLASS
from holdfast_engine.stats.left_open import left_open
from holdfast_engine.stats.stats_fields import FIELDS, Mode, stats_path, written_path
from holdfast_engine.stats.statsfile import read_stats
from tests.holdfast_engine.test_engine_fastloop import Cached, New, Status, ToyOutput, ToyRequest
from tests.holdfast_engine.test_engine_pairs import PREFILL, TO_BE_HANDED_OVER

STOCK_ACTIVE, STOCK_TOKENS = 4, 2048


class Policy(enum.Enum):
    FCFS = "fcfs"


class ToyQueue:
    """First come first served."""

    __abstractmethods__: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._requests: deque[ToyRequest] = deque()

    def add_request(self, request: ToyRequest) -> None:
        self._requests.append(request)

    def pop_request(self) -> ToyRequest:
        return self._requests.popleft()

    def __len__(self) -> int:
        return len(self._requests)


class ToyScheduler:
    """Computes a prompt per step and a token of each running request, and frees what has ended, as vLLM does."""

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config, self.policy = vllm_config, Policy.FCFS
        self.parallel_config, self.scheduler_config = vllm_config.parallel_config, vllm_config.scheduler_config
        self.cache_config, self.need_mamba_block_aligned_split = vllm_config.cache_config, False
        self.max_num_active_reqs, self.max_num_scheduled_tokens, self.num_spec_tokens = STOCK_ACTIVE, STOCK_TOKENS, 0
        self.waiting: Any = ToyQueue()
        self.running: list[ToyRequest] = []
        self.finished_req_ids: set[str] = set()
        self.answers: dict[str, Any] = {}

    def add_request(self, request: ToyRequest) -> None:
        self.waiting.add_request(request)

    def schedule(self) -> ToyOutput:
        self.finished_req_ids = set()
        cached = Cached([each.request_id for each in self.running], [each.num_computed_tokens for each in self.running])
        tokens, new = dict.fromkeys(cached.req_ids, 1), []
        while self.waiting and len(self.running) < self.max_num_active_reqs:
            request = self.waiting.pop_request()
            new.append(New(request.request_id, 0))
            tokens[request.request_id] = request.num_prompt_tokens
            self.running.append(request)
        return ToyOutput(new, cached, tokens)

    def update_from_output(self, scheduled: ToyOutput, results: Any) -> dict[int, Any]:
        before = self.waiting, self.max_num_active_reqs, self.max_num_scheduled_tokens
        for request in list(self.running):
            request.num_computed_tokens += scheduled.num_scheduled_tokens[request.request_id]
            request.num_output_tokens += 1
            if request.num_output_tokens >= request.max_tokens:
                request.status = Status("FINISHED_LENGTH_CAPPED")
                self.answers[request.request_id] = self._free_request(request)
                self.running.remove(request)
        assert (self.waiting, self.max_num_active_reqs, self.max_num_scheduled_tokens) == before, "vLLM works with them"
        return {}

    def finish_requests(self, request_ids: set[str], finished_status: Any) -> list[ToyRequest]:
        ended = [each for each in self.running if each.request_id in request_ids]
        for request in ended:
            self.running.remove(request)
            request.status = Status("FINISHED_ABORTED")
            self._free_request(request)
        return ended

    def _free_request(self, request: ToyRequest) -> tuple[dict[str, Any] | None, Any]:
        self.finished_req_ids.add(request.request_id)
        return {"do_remote_prefill": True}, None


MODULES: dict[str, dict[str, Any]] = {
    "vllm": {"__version__": "0.32.0"},
    "vllm.v1.core.sched.async_scheduler": {"AsyncScheduler": type("AsyncScheduler", (ToyScheduler,), {})},
    "vllm.v1.core.sched.output": {"SchedulerOutput": ToyOutput},
    "vllm.v1.core.sched.request_queue": {
        "RequestQueue": ToyQueue,
        "SchedulingPolicy": Policy,
        "create_request_queue": lambda policy: ToyQueue(),
    },
    "vllm.v1.core.sched.scheduler": {"Scheduler": ToyScheduler},
    "vllm.v1.engine": {"EngineCoreOutputs": object},
    "vllm.v1.outputs": {"ModelRunnerOutput": object},
    "vllm.v1.request": {"Request": ToyRequest, "RequestStatus": object},
}
CONFIG = SimpleNamespace(
    parallel_config=SimpleNamespace(data_parallel_index=0),
    scheduler_config=SimpleNamespace(async_scheduling=False, enable_chunked_prefill=True),
    cache_config=SimpleNamespace(enable_prefix_caching=True),
    model_config=SimpleNamespace(served_model_name="toy", supports_multimodal_inputs=False),
    compilation_config=SimpleNamespace(),
    speculative_config=None,
    kv_transfer_config=SimpleNamespace(get_from_extra_config=lambda name, usual: usual),
)


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """That of a prefill engine."""
    for name, members in MODULES.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    (tmp_path / "engine-limits").write_text(PREFILL.to_json())
    monkeypatch.setenv("HOLDFAST_ENGINE_FOLDER", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_ENGINE_LIMITS", str(tmp_path / "engine-limits"))
    monkeypatch.delitem(sys.modules, "holdfast_engine.scheduler", raising=False)
    found = importlib.import_module("holdfast_engine.scheduler").HoldfastScheduler(vllm_config=CONFIG)
    yield found
    found._loop = None  # ends the thread that looks for limits
    sys.modules.pop("holdfast_engine.scheduler", None)


def ask(scheduler: Any, *names: str) -> None:
    for name in names:
        request = ToyRequest(name, 0.0, 200, 1, kv_transfer_params=dict(TO_BE_HANDED_OVER))
        scheduler.add_request(request)


def step(scheduler: Any) -> None:
    scheduler.update_from_output(scheduler.schedule(), None)


def mode() -> float:
    numbers = read_stats(stats_path(0), len(FIELDS))
    assert numbers is not None
    return dict(zip(FIELDS, numbers, strict=True))["mode"]


def test_a_prefill_engine_adds_to_its_answers_when_their_requests_came(scheduler: Any) -> None:
    ask(scheduler, "a")
    step(scheduler)
    params, _ = scheduler.answers["a"]
    assert params["do_remote_prefill"] is True
    assert params[KEY]["lease"] == 30.0
    assert mode() == Mode.ACTIVE


def test_a_fault_while_a_request_is_handed_over_answers_it_and_makes_the_next_step_stock(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a fault in hand_over")

    monkeypatch.setattr(FastLoop, "hand_over", fail)
    ask(scheduler, *"abcdef")
    queue = scheduler.waiting
    step(scheduler)
    freed = ({"do_remote_prefill": True}, None)
    assert scheduler.answers == dict.fromkeys("abcd", freed), "vLLM frees and answers them"
    assert scheduler.waiting is queue, "not in the middle of a step"
    step(scheduler)
    assert scheduler.answers == dict.fromkeys("abcdef", freed)
    assert isinstance(scheduler.waiting, ToyQueue)
    assert (scheduler.max_num_active_reqs, scheduler.max_num_scheduled_tokens) == (STOCK_ACTIVE, STOCK_TOKENS)
    assert scheduler._loop is None
    assert mode() == Mode.OFF


def test_an_engine_counts_what_the_one_before_it_in_its_container_left_open(scheduler: Any) -> None:
    ask(scheduler, *"abcdef")
    step(scheduler)
    again = type(scheduler).__mro__[1](vllm_config=CONFIG)
    assert (again._loop.ledger.own.left, again._loop.ledger.own.arrived) == (2, 0), "four of six were handed over"
    third = type(scheduler).__mro__[1](vllm_config=CONFIG)
    assert third._loop.ledger.own.left == 2, "they wait to be counted, and are not lost with another engine"
    again._loop = third._loop = None


def test_a_client_that_hangs_up_during_a_step_hides_no_request_that_came_in_it(scheduler: Any) -> None:
    """vLLM ends its request while what came during the step still waits in front of the engine."""
    writer = WrittenWriter(written_path())
    scheduler._loop.client_times._reader._next_look = -math.inf

    def report(*names: str) -> None:
        for name in names:
            writer.write(ReportKind.STARTED, name_of(name), time.monotonic())

    def come(*names: str) -> None:
        for name in names:
            scheduler.add_request(ToyRequest(name, 0.0, 200, 50))

    report("a", "b")
    come("a", "b")
    output = scheduler.schedule()
    report("c", "d", "e")
    scheduler.finish_requests({"a"}, None)
    scheduler._loop._next_record = -math.inf  # a step is longer than the pause between two records
    scheduler.update_from_output(output, None)
    come("c", "d", "e")
    scheduler.schedule()
    assert left_open(stats_path(0), written_path()) == {SERVICE_CLASS: 4}
