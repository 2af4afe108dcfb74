"""The API server's end of the engine: who has waited for too long, whatever the clock of the wall says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast_engine.frontend import Frontend


@dataclass
class Waiting:
    """A request as vLLM's output processor holds it; `stats` is None where vLLM keeps no statistics."""

    request_id: str
    is_prefilling: bool = True
    streaming_input: bool = False
    stats: Any = None


@dataclass
class Engine:
    """Stands for vLLM's AsyncLLM: its requests in order of arrival."""

    request_states: dict[str, Waiting] = field(default_factory=dict)

    @property
    def output_processor(self) -> Engine:
        return self

    def arrive(self, name: str, **more: Any) -> None:
        self.request_states[name] = Waiting(name, **more)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the requests that were ended."""
    found: list[str] = []

    async def end(self: Frontend, state: Any, seconds: float) -> None:
        found.append(state.request_id)
        del self._engine.output_processor.request_states[state.request_id]

    monkeypatch.setattr(Frontend, "_end", end)
    return found


async def test_only_who_has_no_token_and_was_seen_long_ago_is_ended(ended: list[str]) -> None:
    now, engine = 1000.0, Engine()
    frontend = Frontend(engine, lambda: now)  # type: ignore[arg-type]
    engine.arrive("old")
    engine.arrive("served", is_prefilling=False)
    engine.arrive("talking", streaming_input=True)
    await frontend.end_older_than(10.0)
    now += 9.0
    engine.arrive("new")
    await frontend.end_older_than(10.0)
    assert ended == []
    now += 1.0
    await frontend.end_older_than(10.0)
    assert ended == ["old"]
    now += 9.0
    await frontend.end_older_than(10.0)
    assert ended == ["old", "new"]


async def test_a_clock_of_the_wall_that_is_set_ends_nobody(ended: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    wall, engine = [1e9], Engine()
    monkeypatch.setattr("time.time", lambda: wall[0])
    frontend = Frontend(engine)  # type: ignore[arg-type]
    engine.arrive("waits")
    for moment in (1e9, 1e9 + 3600.0, 1e9 - 3600.0):
        wall[0] = moment
        await frontend.end_older_than(10.0)
    assert ended == []


async def test_who_is_gone_is_forgotten_and_a_name_that_comes_again_waits_anew(ended: list[str]) -> None:
    now, engine = 0.0, Engine()
    frontend = Frontend(engine, lambda: now)  # type: ignore[arg-type]
    engine.arrive("again")
    await frontend.end_older_than(10.0)
    engine.request_states.clear()
    now = 8.0
    await frontend.end_older_than(10.0)
    engine.arrive("again")
    await frontend.end_older_than(10.0)
    now = 12.0
    await frontend.end_older_than(10.0)
    assert ended == []
