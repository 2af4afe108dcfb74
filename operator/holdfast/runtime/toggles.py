"""Lets kopf start in time and memory that grow with the number of objects, and not for all of them at once.

Until every kind is listed and indexed, kopf keeps one waiting task per object, with all it holds of the object, and
every object that is listed or indexed wakes all of them to ask whether that was the last one (`ToggleSet` of kopf
1.45). With 1,000 services that were some 10^8 wake-ups, during which nothing was decided, and twice the memory that the
operator needs. Here no object waits for the others: no handler of ours reads an index, and the loop is told when all of
them are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kopf._cogs.aiokits import aiotoggles


class CalmToggles(aiotoggles.ToggleSet):
    """A ToggleSet that wakes those who wait when it turns on or off, rather than at each of its members.

    By a set of `all` kopf asks whether everything is indexed: for that nobody waits, and `indexed` is called.
    """

    def __init__(self, fn: Callable[[Iterable[bool]], bool], indexed: Callable[[], None]) -> None:
        super().__init__(fn)
        self._indexed = indexed

    async def wait_for(self, __state: bool) -> None:
        if self._fn is not all:
            await super().wait_for(__state)

    async def make_toggle(self, __val: bool = False, *, name: str | None = None) -> aiotoggles.Toggle:
        toggle = aiotoggles.Toggle(__val, name=name, condition=self._condition)
        async with self._condition:
            was_on = self.is_on()
            self._toggles.add(toggle)
            self._tell_if_changed(was_on)
        return toggle

    async def drop_toggle(self, toggle: aiotoggles.Toggle) -> None:
        async with self._condition:
            was_on = self.is_on()
            self._toggles.discard(toggle)
            self._tell_if_changed(was_on)

    def _tell_if_changed(self, was_on: bool) -> None:
        if self.is_on() == was_on:
            return
        self._condition.notify_all()
        if self._fn is all and not was_on:
            self._indexed()


def calm_toggles(indexed: Callable[[], None]) -> None:
    """Let every operator that kopf starts in this process use them; `indexed` once all indices are complete."""

    class Toggles(CalmToggles):
        def __init__(self, fn: Callable[[Iterable[bool]], bool]) -> None:
            super().__init__(fn, indexed)

    aiotoggles.ToggleSet = Toggles  # type: ignore[misc]
