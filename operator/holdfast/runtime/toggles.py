"""Lets kopf start in time that grows with the number of objects, not with its square.

Until every kind is listed and indexed, kopf keeps one waiting task per object, and every object that is listed or
indexed wakes all of them to ask whether that was the last one (`ToggleSet` of kopf 1.45): with 1,000 services some 10^8
wake-ups, during which nothing is decided. Here they are woken when the answer has changed.
"""

from __future__ import annotations

from kopf._cogs.aiokits import aiotoggles


class CalmToggles(aiotoggles.ToggleSet):
    """A ToggleSet that wakes those who wait when it turns on or off, rather than at each of its members."""

    async def make_toggle(self, __val: bool = False, *, name: str | None = None) -> aiotoggles.Toggle:
        toggle = aiotoggles.Toggle(__val, name=name, condition=self._condition)
        async with self._condition:
            was_on = self.is_on()
            self._toggles.add(toggle)
            self._notify_if_changed(was_on)
        return toggle

    async def drop_toggle(self, toggle: aiotoggles.Toggle) -> None:
        async with self._condition:
            was_on = self.is_on()
            self._toggles.discard(toggle)
            self._notify_if_changed(was_on)

    def _notify_if_changed(self, was_on: bool) -> None:
        if self.is_on() != was_on:
            self._condition.notify_all()


def calm_toggles() -> None:
    """Let every operator that kopf starts in this process use them."""
    aiotoggles.ToggleSet = CalmToggles  # type: ignore[misc]
