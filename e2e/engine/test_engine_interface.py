"""The interface of vLLM that the plugin is written against, in every supported release."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.engine.interface import problems
from e2e.vllm.environment import Environment
from e2e.vllm.flags import flags
from e2e.vllm.sources import other_release
from holdfast.cli.parsers.emulate import VLLM_FLAGS

pytestmark = pytest.mark.vllm

_OURS = ("holdfast_engine.scheduler", "holdfast_engine.statlogger", "holdfast_engine.apiserver.frontend")
_QUEUE = """
from holdfast_engine.queue.waiting import DeadlineQueue
from vllm.v1.core.sched.request_queue import RequestQueue
print(sorted(name for name in RequestQueue.__abstractmethods__ if not hasattr(DeadlineQueue, name)))
"""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was read of the installed release."""
    return tmp_path_factory.mktemp("types")


def test_the_plugin_fits_the_types_of_the_installed_release(vllm: Environment, scratch: Path) -> None:
    assert problems(vllm.packages / "vllm", scratch, *_OURS) == ""


def test_the_check_of_types_finds_mistakes(vllm: Environment, scratch: Path) -> None:
    found = problems(vllm.packages / "vllm", scratch, *_OURS, "wrongtypes")
    assert '"RequestQueue" has no attribute "peek"' in found
    assert 'Argument 1 to "add_request"' in found


def test_the_plugin_fits_the_types_of_the_other_supported_release(vllm: Environment, tmp_path: Path) -> None:
    assert other_release().exists(), "python -m e2e.vllm build"
    assert problems(other_release(), tmp_path, *_OURS) == ""


def test_the_waiting_queue_has_every_method_of_vllm(vllm: Environment, plugin: Path) -> None:
    path = os.pathsep.join([str(plugin), vllm.variables()["PYTHONPATH"]])
    command = [sys.executable, "-c", _QUEUE]
    done = subprocess.run(
        command, env={**vllm.variables(), "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().endswith("[]"), done.stderr[-2000:]


def test_the_emulator_knows_the_flags_of_the_installed_release(vllm: Environment) -> None:
    assert flags(vllm) == VLLM_FLAGS.read_text(), f"python -m e2e.vllm flags > {VLLM_FLAGS}"


def test_vllm_and_the_emulator_refuse_unknown_arguments_in_the_same_words(vllm: Environment) -> None:
    given = ["serve", "m", "--seed=1", "--odd=1", "second"]
    real = [sys.executable, "-m", "vllm.entrypoints.cli.main", *given]
    emulated = [sys.executable, "-m", "holdfast", "emulate", *given]
    for command, variables in ((real, vllm.variables()), (emulated, None)):
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].endswith(": unrecognized arguments: --odd=1 second")
