"""The installed vLLM, the plugin as it is mounted, and the requests that every engine gets."""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.engine.mount import mount
from e2e.engine.server import Prompt, Server, Settings
from e2e.vllm.environment import Environment
from e2e.vllm.installed import installed_vllm
from e2e.vllm.model import VOCABULARY

os.environ["no_proxy"] = "*"  # every server is on this host


def _end(number: int, frame: object) -> None:
    raise KeyboardInterrupt


# Engines are processes of their own: who is asked to end ends them first.
for _each in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(_each, _end)

Answers = list[list[int] | None]


@dataclass(frozen=True)
class Crowd:
    """Two hundred requests of mixed lengths, and what stock vLLM answers to each.

    None where stock does not agree with itself under another load: kernels may round differently for another batch.
    """

    prompts: list[Prompt]
    stock: Answers

    def assert_same(self, answers: list[list[int]], first: int = 0) -> None:
        """These answers, to the prompts from `first` on and around, are stock's."""
        expected = [self.stock[(first + number) % len(self.stock)] for number in range(len(answers))]
        compared = [(ours, stock) for ours, stock in zip(answers, expected, strict=True) if stock is not None]
        assert len(compared) >= 0.75 * len(answers), "stock hardly agrees with itself"
        assert all(ours == stock for ours, stock in compared)


def stock_crowd(server: Server, prompts: list[Prompt]) -> Crowd:
    """Ask stock vLLM twice."""
    crowded, sparse = server.complete_all(prompts, at_once=16), server.complete_all(prompts, at_once=3)
    return Crowd(prompts, [one if one == other else None for one, other in zip(crowded, sparse, strict=True)])


@pytest.fixture(scope="session")
def vllm() -> Environment:
    """The installed engine."""
    return installed_vllm()


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the plugin."""
    return mount(tmp_path_factory.mktemp("plugin") / "mounted")


@pytest.fixture(scope="session")
def crowd(vllm: Environment, tmp_path_factory: pytest.TempPathFactory) -> Crowd:
    """Asked of stock vLLM twice."""
    draw = random.Random(7)
    prompts = [
        Prompt([draw.randrange(3, VOCABULARY) for _ in range(draw.choice((16, 100, 400)))], draw.choice((1, 8, 40)))
        for _ in range(200)
    ]
    with Server(Settings(vllm, tmp_path_factory.mktemp("stock"))) as server:
        return stock_crowd(server, prompts)
