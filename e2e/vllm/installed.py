"""The installed vLLM for tests: skipped loudly without the wheel, but never in the project's own CI."""

from __future__ import annotations

import os

import pytest

from e2e.vllm.environment import REPOSITORY, Environment, MissingWheelError, environment, find_wheel


def installed_vllm() -> Environment:
    """The environment; ends the test where there is none."""
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
