"""What kopf waits for at its start, with the real wait and the real sets of toggles."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from kopf._cogs.aiokits import aiotoggles
from kopf._core.reactor import orchestration

from holdfast.runtime.toggles import CalmToggles, calm_toggles


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


async def _start(toggles: aiotoggles.ToggleSet, objects: int) -> list[bool]:
    """List one kind as kopf does: a toggle and a task per object, which drops it and waits for all others."""
    seen: list[bool] = []

    async def work(toggle: aiotoggles.Toggle) -> None:
        await toggles.drop_toggle(toggle)
        await toggles.wait_for(True)
        seen.append(toggles.is_on())

    kind = await toggles.make_toggle(name="kind")
    tasks = []
    for number in range(objects):
        tasks.append(asyncio.create_task(work(await toggles.make_toggle(name=str(number)))))
        await asyncio.sleep(0)
    assert not seen, "nobody goes on before the kind is listed"
    await toggles.drop_toggle(kind)
    await asyncio.gather(*tasks)
    return seen


async def test_whoever_waits_goes_on_once_everything_is_indexed() -> None:
    assert await _start(CalmToggles(all), 50) == [True] * 50


async def test_a_start_asks_a_few_times_per_object_however_many_there_are() -> None:
    few, many = Counting(all), Counting(all)
    await _start(few, 100)
    await _start(many, 1000)
    assert many.asked / 1000 <= 1.1 * few.asked / 100


async def test_a_set_that_turns_off_again_is_seen() -> None:
    toggles = CalmToggles(all)
    waiting = asyncio.create_task(toggles.wait_for(False))
    await asyncio.sleep(0)
    await toggles.make_toggle(name="late")
    await waiting


def test_kopf_takes_them(kopf_untouched: None) -> None:
    calm_toggles()
    assert vars(orchestration)["aiotoggles"].ToggleSet is CalmToggles
