"""What the launcher leaves in the termination log of an engine that ends of a fault, and what the operator reads there.

A real vLLM leaves it in `e2e/test_real_vllm.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.observe.objects.failure_words import explained
from tests.render.test_pod_launcher import NEWEST, Image

KEPT_BYTES = 4096  # by the kubelet
CAUSE = "CUDA out of memory. Tried to allocate 2.00 GiB"
POINTER = "Engine core initialization failed. See root cause above"

# An engine as vLLM's: a core of its own process, with a worker in another one that logs its fault and ends.
ENGINE = """
import logging, multiprocessing, sys

log = logging.getLogger("vllm.v1")

def worker():
    try:
        raise MemoryError({cause!r})
    except Exception:
        log.exception("WorkerProc failed to start.")

def core(method):
    try:
        started = multiprocessing.get_context(method).Process(target=worker, name="Worker_TP0")
        started.start()
        started.join()
        raise Exception("WorkerProc initialization failed. See stack trace for root cause.")
    except Exception:
        log.exception("EngineCore failed to start.")
        raise

def main():
    context = multiprocessing.get_context({method!r})
    started = context.Process(target=core, args=({method!r},), name="EngineCore_DP0")
    started.start()
    started.join()
    raise RuntimeError({pointer!r} + ". Failed core proc(s): {{}}")
"""


def ended(image: Image, source: str) -> tuple[int, str]:
    """The exit status of such a vLLM, and the termination log."""
    log = image.folder / "termination-log"
    log.touch()
    image.environment["HOLDFAST_TERMINATION_LOG"] = str(log)
    process = image.vllm(NEWEST, source).start("serve", "m")
    process.communicate(timeout=60)
    return process.returncode, log.read_text()


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_cause_in_a_worker_is_named_though_the_api_server_ends_last(image: Image, method: str) -> None:
    status, told = ended(image, ENGINE.format(cause=CAUSE, pointer=POINTER, method=method))
    assert status == 1
    first, *others = told.splitlines()
    assert first.startswith("(Worker_TP0 pid=")
    assert first.endswith(f") MemoryError: {CAUSE}")
    assert [line.split()[0] for line in others] == ["(EngineCore_DP0", "(MainProcess"]
    _, words = explained("CrashLoopBackOff", told, {"name": "chat", "namespace": "llm"})
    assert words.startswith(f"MemoryError: {CAUSE}; lower --gpu-memory-utilization")


def test_exceptions_that_led_to_each_other_are_told_in_order(image: Image) -> None:
    source = "def main():\n try:\n  {}['key']\n except KeyError as e:\n  raise OSError('no config\\nat all') from e\n"
    _, told = ended(image, source)
    assert [line.partition(") ")[2] for line in told.splitlines()] == [
        "KeyError: 'key'",
        "OSError: no config",
        "at all",
    ]


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("def main(): raise SystemExit(2)\n", 2),
        ("def main(): return None\n", 0),
        ("import logging\ndef main():\n try: 1 / 0\n except ZeroDivisionError: logging.exception('a plugin')\n", 0),
        ("import logging\ndef main():\n logging.error('no fault', exc_info=True)\n raise SystemExit(2)\n", 2),
    ],
)
def test_an_end_without_an_exception_leaves_the_log_to_the_kubelet(image: Image, source: str, status: int) -> None:
    assert ended(image, source) == (status, "")


def test_the_first_ones_are_kept_where_there_is_no_room_for_all(image: Image) -> None:
    source = (
        "import multiprocessing\ndef fail(number):\n raise ValueError(f'{number} ' + 'x' * 3000)\n"
        "def main():\n for each in range(9):\n"
        "  one = multiprocessing.get_context('fork').Process(target=fail, args=(each,))\n"
        "  one.start()\n  one.join()\n raise RuntimeError('see above')\n"
    )
    _, told = ended(image, source)
    assert len(told) < KEPT_BYTES
    assert [line.partition("ValueError: ")[2][0] for line in told.splitlines()] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("mark", ["", "x"])
def test_no_line_is_cut_within_a_character(image: Image, mark: str) -> None:
    """One of the two would end within a character of two bytes."""
    source = (
        "def main():\n error = None\n for _ in range(4):\n"
        f"  last, error = error, ValueError({mark!r} + 'ü' * 900)\n  error.__cause__ = last\n raise error\n"
    )
    _, told = ended(image, source)
    assert len(told.encode()) > KEPT_BYTES - 100
    assert told.endswith("ü")


def test_an_exception_that_cannot_be_told_hides_no_other(image: Image) -> None:
    source = (
        "class Odd(Exception):\n def __str__(self): raise ValueError\n"
        "def main():\n try: raise OSError('the cause')\n except OSError as e: raise Odd() from e\n"
    )
    status, told = ended(image, source)
    assert status == 1
    assert "OSError: the cause" in told


def test_without_a_termination_log_nothing_is_made(image: Image) -> None:
    image.environment["HOLDFAST_TERMINATION_LOG"] = str(image.folder / "none")
    process = image.vllm(NEWEST, "def main(): raise ValueError('x')\n").start("serve", "m")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "ValueError: x" in errors
    assert not (image.folder / "none").exists()
