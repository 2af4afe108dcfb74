"""The API server's end of the engine: who has waited for too long, whatever the clock of the wall says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast_engine.apiserver.frontend import Frontend

LONGEST_SECONDS = 10.0


@dataclass
class Waiting:
    """A request as vLLM's output processor holds it."""

    request_id: str
    is_prefilling: bool = True
    streaming_input: bool = False


@dataclass
class Engine:
    """Stands for vLLM's AsyncLLM: its requests in order of arrival."""

    request_states: dict[str, Waiting] = field(default_factory=dict)
    now: float = 0.0

    @property
    def output_processor(self) -> Engine:
        return self

    def arrive(self, name: str, **more: Any) -> None:
        self.request_states[name] = Waiting(name, **more)

    async def sweep(self, frontend: Frontend, *moments: float, patient: set[str] | None = None) -> None:
        for moment in moments:
            self.now = moment
            await frontend.end_older_than(LONGEST_SECONDS, set() if patient is None else patient)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the requests that were ended."""
    found: list[str] = []

    async def end(self: Frontend, state: Any, message: str) -> None:
        found.append(state.request_id)
        del self._engine.output_processor.request_states[state.request_id]

    monkeypatch.setattr(Frontend, "_end", end)
    return found


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def frontend(engine: Engine) -> Frontend:
    return Frontend(engine, lambda: engine.now)  # type: ignore[arg-type]


async def test_only_who_has_no_token_and_was_seen_long_ago_is_ended(
    engine: Engine, frontend: Frontend, ended: list[str]
) -> None:
    engine.arrive("old")
    engine.arrive("served", is_prefilling=False)
    engine.arrive("talking", streaming_input=True)
    await engine.sweep(frontend, 0.0)
    engine.arrive("new")
    await engine.sweep(frontend, 9.0)
    assert ended == []
    await engine.sweep(frontend, 10.0)
    assert ended == ["old"]
    await engine.sweep(frontend, 19.0)
    assert ended == ["old", "new"]


async def test_a_session_waits_anew_for_each_part_of_its_input(
    engine: Engine, frontend: Frontend, ended: list[str]
) -> None:
    engine.arrive("session", streaming_input=True)
    await engine.sweep(frontend, 0.0, 5.0, 20.0)
    engine.request_states["session"].streaming_input = False
    await engine.sweep(frontend, 21.0, 30.0)
    assert ended == []
    await engine.sweep(frontend, 31.0)
    assert ended == ["session"]


async def test_a_clock_of_the_wall_that_is_set_ends_nobody(
    engine: Engine, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: engine.now)
    engine.arrive("waits")
    await engine.sweep(Frontend(engine), 1e9, 1e9 + 3600.0, 1e9 - 3600.0)  # type: ignore[arg-type]
    assert ended == []


async def test_who_is_gone_is_forgotten_and_a_name_that_comes_again_waits_anew(
    engine: Engine, frontend: Frontend, ended: list[str]
) -> None:
    engine.arrive("again")
    await engine.sweep(frontend, 0.0)
    engine.request_states.clear()
    await engine.sweep(frontend, 8.0)
    engine.arrive("again")
    await engine.sweep(frontend, 9.0, 12.0)
    assert ended == []


async def test_the_patient_wait_on_and_are_forgotten_when_they_have_gone(
    engine: Engine, frontend: Frontend, ended: list[str]
) -> None:
    patient = {"night", "gone"}
    for name in ("night", "day"):
        engine.arrive(name)
    await engine.sweep(frontend, 0.0, 1e6, patient=patient)
    assert (ended, patient) == (["day"], {"night"})


async def test_what_waits_for_a_replica_that_goes_is_given_back_and_what_runs_is_not(
    engine: Engine, frontend: Frontend, ended: list[str]
) -> None:
    engine.arrive("night")
    engine.arrive("running", is_prefilling=False)
    engine.arrive("day")
    await frontend.give_back({"night", "running", "gone"})
    assert ended == ["night"]
