"""Notice that somebody else sets the size back, and leave it to them for a while: two who write it fight for ever.

Source: docs/designs/0024-set-backs.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from holdfast.api.quantities import utc
from holdfast.domain.cluster import Placement, Workload
from holdfast.domain.decision import PlacementTarget
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.domain.value import value

WITHIN_SECONDS, MOST_TIMES = 120.0, 3
"""Sizes are only recommended after so many set-backs within this time; a size that stays for as long is no fight."""

FIRST_SECONDS, LONGEST_SECONDS = 3600.0, 86_400.0
"""The first pause before the next try; it doubles up to the second."""


@value
class SetBacks:
    """When sizes were found set back, newest last, and by whom; times in seconds since the epoch.

    `by` is the field manager, empty if unknown. From `paused_at` on sizes are only recommended for `pause_seconds`,
    which are 0 before the third set-back.
    """

    at: tuple[float, ...] = ()
    by: str = ""
    workload: Workload = Workload()
    paused_at: float = 0.0
    pause_seconds: float = 0.0

    def paused(self, now: float) -> bool:
        """Return whether sizes are only recommended."""
        return 0.0 <= now - self.paused_at < self.pause_seconds

    def lately(self, now: float) -> tuple[float, ...]:
        """Return when a size was set back within the last two minutes."""
        return tuple([at for at in self.at if 0.0 <= now - at <= WITHIN_SECONDS])

    @property
    def told(self) -> str:
        """What happens, what follows, and what to do; the same words for the whole pause."""
        until = utc(self.paused_at + self.pause_seconds, "%Y-%m-%d %H:%M")
        follows = f"sizes are only recommended and one is tried again at {until}"
        remedy = "remove that autoscaler, or replicas from the manifest that is applied; or set mode to Recommend"
        return f"{self.who} sets the size of {self.workload} back each time, so {follows}; {remedy}"

    @property
    def who(self) -> str:
        """The field manager, as the API server tells it, and what that is."""
        meant = " (a HorizontalPodAutoscaler)" if self.by == "kube-controller-manager" else ""
        return f"{self.by or 'somebody else'}{meant}"


NONE = SetBacks()


def watch(
    memory: SetBacks, service: ServiceSnapshot, decided: Sequence[PlacementTarget] | None, edited: bool, now: float
) -> SetBacks:
    """Record one tick.

    `decided` are the last targets, None before the first decision. Who edits the spec has the size tried at once.
    """
    if service.spec.recommend_only:
        return NONE
    if decided is None and service.recalled.set_back:
        return SetBacks(paused_at=now - FIRST_SECONDS, pause_seconds=FIRST_SECONDS)
    if edited:
        return replace(memory, paused_at=now - memory.pause_seconds)
    # What comes soon after the end of the pause belongs to it, or after the last set-back if that was later.
    ended_at = max(memory.paused_at + memory.pause_seconds, *memory.at[-1:], 0.0)
    known = memory if -memory.pause_seconds <= now - ended_at <= WITHIN_SECONDS else NONE
    found = next(_set_back(service, decided or ()), None)
    return known if found is None else _recorded(known, found, now)


def respecting(service: ServiceSnapshot, memory: SetBacks, now: float) -> ServiceSnapshot:
    """Return the service as it is decided on: in a pause like one in mode Recommend, unless its size is pinned."""
    spec = service.spec
    if spec.pinned_replicas is not None or not memory.paused(now):
        return service
    return replace(service, spec=replace(spec, recommend_only=True))


def _set_back(service: ServiceSnapshot, decided: Iterable[PlacementTarget]) -> Iterator[Placement]:
    """Yield what somebody else sized since it was written.

    Without a record of writes each decision counts as one, where the size can be somebody else's.
    """
    wanted = {target.accelerator: target.replicas for target in decided}
    for placement in service.placements:
        name = placement.accelerator
        foreign = bool(placement.workload.name) and (service.spec.adopted or bool(placement.sized_by))
        differs = foreign and wanted.get(name, placement.replicas) != placement.replicas
        if differs if service.set_back is None else name in service.set_back:
            yield placement


def _recorded(memory: SetBacks, found: Placement, now: float) -> SetBacks:
    told = replace(memory, at=(*memory.lately(now), now)[-MOST_TIMES:], by=found.sized_by, workload=found.workload)
    if memory.paused(now) or not (memory.pause_seconds or len(told.at) == MOST_TIMES):
        return told
    pause = min(max(2.0 * memory.pause_seconds, FIRST_SECONDS), LONGEST_SECONDS)
    return replace(told, paused_at=now, pause_seconds=pause)
