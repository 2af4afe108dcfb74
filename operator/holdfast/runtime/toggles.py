"""Makes kopf's start linear in the number of objects instead of quadratic.

Until every kind is listed and indexed, kopf holds one waiting task per object, with the object. Every object that is
listed or indexed wakes all of these tasks to check whether it was the last one (`ToggleSet` of kopf 1.45). With 1,000
services this took some 10^8 wake-ups without any decision, and twice the memory that the operator needs. Here no
object waits for another: our handlers read no index, and the loop is notified when all indices are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kopf._cogs.aiokits import aiotoggles


class CalmToggles(aiotoggles.ToggleSet):
    """A ToggleSet that wakes its waiters when it turns on or off, rather than at each of its members.

    kopf uses a set with `all` for "everything is indexed": no task waits for that here; `indexed` is called instead.
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
    """Install it for every operator that kopf starts in this process; complete indices call `indexed`."""

    class Toggles(CalmToggles):
        def __init__(self, fn: Callable[[Iterable[bool]], bool]) -> None:
            super().__init__(fn, indexed)

    aiotoggles.ToggleSet = Toggles  # type: ignore[misc]
