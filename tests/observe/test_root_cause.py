"""D04: of processes that fail one after the other, the first one says why; the last line of a log does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.observe.objects.failure_words import MOST_WORDS, explained, told
from holdfast.observe.objects.root_cause import MOST_CHARACTERS, root_cause
from tests.observe.engine_logs import DIRECT, MEANWHILE, POINTERS, STYLES, WORKER_POINTERS, prefixed, traceback

POD = {"name": "chat-h100-abc", "namespace": "prod"}
KUBELET_BYTES = 2048

# Words of an engine, and what the remedy must name. Project-HAMi/HAMi#1947; vLLM 0.9 to 0.32.
MEMORY = {
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.1 GiB free.": (
        "gpu-memory-utilization"
    ),
    "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 14.00 GiB.": "gpu-memory-utilization",
    "RuntimeError: CUDA error: out of memory": "gpu-memory-utilization",
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.": "maxNumSeqs",
    "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (5.51 GiB).": "maxModelLen",
    "ValueError: The model's max seq len (40960) is larger than the maximum number of tokens that can be stored in KV "
    "cache (21344). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`.": "maxModelLen",
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.": (
        "raise --gpu-memory-utilization"
    ),
    "ValueError: Free memory on device (3.2/79.1 GiB) on startup is less than desired GPU memory utilization (0.9).": (
        "what else uses the GPU"
    ),
    "ValueError: Free memory on device cuda:1 (3.2/79.1 GiB) on startup is less than desired.": "what else uses",
    "AssertionError: Error in memory profiling. Initial free memory 3 GiB, current free 9 GiB.": "what else uses",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory": (
        "engine.resources"
    ),
}
OTHERS = (
    "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory",
    "ValueError: Model architectures ['Qwen9ForCausalLM'] are not supported for now.",
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, dtype is odd",
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072",
    "torch._dynamo.exc.BackendCompilerFailed: backend='<vllm.compilation>' raised:",
    "KeyError: 'layers.0.mlp.gate.weight'",
    "AssertionError",
)


def ready(words: str) -> str:
    reason, said = explained("CrashLoopBackOff", words, POD)
    assert reason == "CrashLoopBackOff"
    assert len(said) <= 700
    return said


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES.keys())
@pytest.mark.parametrize("pointer", POINTERS, ids=range(len(POINTERS)))
@pytest.mark.parametrize("cause", [*MEMORY, *OTHERS])
def test_ready_quotes_the_process_that_failed_first_and_not_those_that_report_it(
    cause: str, pointer: str, style: object
) -> None:
    words = style(cause, pointer)  # type: ignore[operator]
    found = root_cause(words)
    assert found is not None
    assert found.exceptions[-1] == cause
    said = ready(words)
    assert cause[:200] in said
    assert "root cause" not in said
    assert MEMORY.get(cause, "change what it names in the spec") in said


@pytest.mark.parametrize("cause", MEMORY)
def test_what_the_kubelet_kept_is_enough_where_the_cause_is_in_it(cause: str) -> None:
    words = STYLES["0.11"](cause, POINTERS[0], depth=2)[-KUBELET_BYTES:]
    assert cause[:100] in ready(words)


@given(st.integers(0, 3000), st.sampled_from(sorted(MEMORY)), st.sampled_from(sorted(STYLES)))
def test_a_log_that_is_cut_anywhere_names_the_cause_while_its_line_is_whole(cut: int, cause: str, style: str) -> None:
    words = STYLES[style](cause, POINTERS[0])[cut:]
    found = root_cause(words)
    if f" {cause}" in words and style != "workers":
        assert found is not None
        assert found.exceptions[-1] == cause


@pytest.mark.parametrize("depth", [1, 40])
def test_a_target_gets_the_remedy_in_words_of_its_deployment(depth: int) -> None:
    words = STYLES["0.11"]("torch.OutOfMemoryError: CUDA out of memory.", POINTERS[0], depth=depth)
    _, said = explained("CrashLoopBackOff", words, POD, "my-vllm")
    assert said.endswith("in Deployment my-vllm")
    assert "engine.args" not in said


@pytest.mark.parametrize("link", [DIRECT, MEANWHILE])
def test_exceptions_of_one_process_that_led_to_each_other_are_one_cause(link: str) -> None:
    chain = ("ssl.SSLError: odd", "requests.exceptions.ConnectionError: no", "OSError: We looked for the model in vain")
    words = f"{prefixed(traceback(*chain, link=link), 'EngineCore', 9)}\n{traceback(POINTERS[0])}"
    found = root_cause(words)
    assert found is not None
    assert found.exceptions == chain
    assert told(words) is not None, "the first of them tells"


def test_an_engine_that_was_killed_while_it_loaded_asks_for_more_memory() -> None:
    pointer = POINTERS[0].replace("{}", "{'EngineCore_DP0': -9}")
    assert "request more memory" in ready(prefixed(traceback(pointer), "APIServer", 1))


def test_an_exception_that_a_process_survived_is_not_the_cause_where_it_fails_of_another() -> None:
    survived = prefixed(traceback("ValueError: survived"), "EngineCore", 88)
    words = f"{survived}\n{STYLES['0.11']('ValueError: the cause', POINTERS[0])}"
    assert "ValueError: the cause" in ready(words)


def test_warnings_are_no_cause_nor_is_how_a_process_is_told_to_end() -> None:
    warning = "(EngineCore pid=88) WARNING 11-27 18:00:00 [x.py:1] ImportError: no flash attention"
    stopped = prefixed(traceback("asyncio.exceptions.CancelledError"), "APIServer", 1)
    assert root_cause(f"{warning}\n{stopped}\n{traceback('SystemExit: 1')}") is None


def test_without_an_exception_the_end_of_the_log_is_shown_as_ever() -> None:
    words = "usage: vllm serve\n" * 100 + "vllm serve: error: argument --odd: expected one argument"
    assert "vllm serve: error: argument --odd: expected one argument; change what it names" in ready(words)


def test_colors_and_a_prefix_of_ones_own_hide_no_process() -> None:
    colored = "\x1b[0;36m(EngineCore pid=88)\x1b[0;0m \x1b[31mERROR\x1b[0m \x1b[90m11-27 18:00:00\x1b[0m [core.py:7] "
    for line in (f"{colored}ValueError: x", f"[pod-1] {colored}ValueError: x\r\n"):
        found = root_cause(f"{line}\n{traceback(POINTERS[0])}")
        assert found is not None
        assert found.exceptions == ("ValueError: x",)


@pytest.mark.parametrize("pointer", [*POINTERS, *WORKER_POINTERS])
def test_where_nothing_but_reports_is_left_there_is_no_cause(pointer: str) -> None:
    assert root_cause(prefixed(traceback(pointer), "APIServer", 1)) is None


@given(st.text(), st.integers(1, 5))
def test_no_text_is_an_error_and_none_is_quoted_at_length(text: str, times: int) -> None:
    found = root_cause("\n".join([text] * times + [f"ValueError: {text}"]))
    assert found is None or all(len(each) <= MOST_CHARACTERS for each in found.exceptions)
    assert len(explained("Error", f"ValueError: {text * 300}", POD)[1]) <= MOST_WORDS + 200
