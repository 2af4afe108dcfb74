"""What kopf waits for at its start, with the real wait and the real sets of toggles."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from kopf._cogs.aiokits import aiotoggles
from kopf._core.reactor import orchestration

from holdfast.runtime.toggles import CalmToggles, calm_toggles


class Start:
    """A start of kopf: every object has a toggle, and a task that drops it and goes on when kopf lets it."""

    def __init__(self) -> None:
        self.indexed, self.went_on = 0, 0
        self.toggles = Counting(all, self._note)

    def _note(self) -> None:
        self.indexed += 1

    async def list_kind(self, objects: int) -> None:
        kind, tasks = await self.toggles.make_toggle(name="kind"), []
        for number in range(objects):
            tasks.append(asyncio.create_task(self._index(await self.toggles.make_toggle(name=str(number)))))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert self.indexed == 0, "a kind that is listed in part is not indexed"
        await self.toggles.drop_toggle(kind)

    async def _index(self, toggle: aiotoggles.Toggle) -> None:
        await self.toggles.drop_toggle(toggle)
        await self.toggles.wait_for(True)
        self.went_on += 1


class Counting(CalmToggles):
    """Counts how often anybody asks whether the set is on."""

    asked = 0

    def is_on(self) -> bool:
        self.asked += 1
        return super().is_on()


@pytest.fixture
def kopf_untouched() -> Iterator[None]:
    before = aiotoggles.ToggleSet
    yield
    aiotoggles.ToggleSet = before  # type: ignore[misc]


async def test_no_object_waits_for_the_others_and_the_end_is_told_once() -> None:
    start = Start()
    await start.list_kind(50)
    assert (start.went_on, start.indexed) == (50, 1)


async def test_an_object_that_is_not_read_yet_holds_the_end_back() -> None:
    start = Start()
    late = await start.toggles.make_toggle(name="late")
    await start.list_kind(5)
    assert start.indexed == 0
    await start.toggles.drop_toggle(late)
    assert start.indexed == 1


async def test_a_start_asks_a_few_times_per_object_however_many_there_are() -> None:
    few, many = Start(), Start()
    await few.list_kind(100)
    await many.list_kind(1000)
    assert many.toggles.asked / 1000 <= 1.1 * few.toggles.asked / 100


async def test_a_pause_is_waited_for_and_told_to_nobody() -> None:
    told: list[str] = []
    paused = CalmToggles(any, lambda: told.append("indexed"))
    toggle = await paused.make_toggle(True, name="peer")
    waiting = asyncio.create_task(paused.wait_for(False))
    await asyncio.sleep(0)
    assert not waiting.done()
    await paused.drop_toggle(toggle)
    await waiting
    assert told == []


def test_kopf_takes_them(kopf_untouched: None) -> None:
    calm_toggles(lambda: None)
    assert issubclass(vars(orchestration)["aiotoggles"].ToggleSet, CalmToggles)
