"""What a command costs before it does anything, and what a plain installation has to hold."""

from __future__ import annotations

import pkgutil
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli import parsers
from holdfast.cli.commands import COMMANDS
from holdfast.cli.simulate import SEARCHED
from holdfast.twin.inputs import POLICY_NAMES
from holdfast.twin.policies import ALIASES, POLICIES

TRIES = 3


def cpu_seconds(*arguments: str) -> float:
    """User and system time of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "holdfast", *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(
    ("arguments", "bound"), [(("--help",), 0.3), *(((name, "--help"), 0.5) for name in COMMANDS)], ids=str
)
def test_a_help_comes_at_once(arguments: tuple[str, ...], bound: float) -> None:
    # The first try may compile the sources, and a crowded machine makes each one slower: one within the bound is proof.
    assert any(cpu_seconds(*arguments) <= bound for _ in range(TRIES))


def test_the_list_of_commands_is_that_of_their_parsers() -> None:
    assert set(COMMANDS) == {module.name for module in pkgutil.iter_modules(parsers.__path__)} - {"connection"}
    assert all(Path(parsers.__path__[0]).parent.joinpath(f"{name}.py").is_file() for name in COMMANDS)


def test_the_help_of_simulate_names_every_policy() -> None:
    assert (*POLICIES, *ALIASES, *SEARCHED) == POLICY_NAMES
