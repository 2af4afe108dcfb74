"""The installed vLLM, the plugin as it is mounted, and the requests that every engine gets."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from e2e.engine.mount import mount
from e2e.engine.server import Prompt, Server, Settings
from e2e.vllm.environment import REPOSITORY, Environment, MissingWheelError, environment, find_wheel
from e2e.vllm.model import VOCABULARY


@pytest.fixture(scope="session")
def vllm() -> Environment:
    """The installed engine; without the wheel the tests are skipped, but never in the project's own CI."""
    try:
        find_wheel()
    except MissingWheelError as problem:
        if os.environ.get("CI") == "true" and (REPOSITORY.parent / "shared").exists():
            pytest.fail(str(problem), pytrace=False)
        pytest.skip(f"NO REAL VLLM: {problem}")
    found = environment()
    if not found.folder.exists():
        pytest.fail("the real vLLM is not installed: python -m e2e.vllm build", pytrace=False)
    return found


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the plugin."""
    return mount(tmp_path_factory.mktemp("plugin") / "mounted")


@pytest.fixture(scope="session")
def prompts() -> list[Prompt]:
    """Forty requests of mixed lengths."""
    draw = random.Random(7)
    return [
        Prompt([draw.randrange(3, VOCABULARY) for _ in range(draw.choice((16, 100, 400)))], draw.choice((1, 8, 40)))
        for _ in range(40)
    ]


@pytest.fixture(scope="session")
def stock_answers(
    vllm: Environment, prompts: list[Prompt], tmp_path_factory: pytest.TempPathFactory
) -> list[list[int] | None]:
    """What stock vLLM answers; None where it does not agree with itself under another load.

    Kernels may round differently for another batch.
    """
    with Server(Settings(vllm, tmp_path_factory.mktemp("stock"))) as server:
        crowded, sparse = server.complete_all(prompts, at_once=16), server.complete_all(prompts, at_once=3)
    return [one if one == other else None for one, other in zip(crowded, sparse, strict=True)]
