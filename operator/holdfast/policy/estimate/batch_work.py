"""What batch work asks for where it would not be done in time by what all other requests leave.

Source: docs/designs/0032-batch.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from holdfast.domain.service import BatchClass
from holdfast.domain.signals import BatchClassTraffic, BatchTraffic, LengthHistogram
from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value
from holdfast.policy.estimate.demand import Peaks, remember_level
from holdfast.policy.estimate.length_mix import MEMORY_SECONDS, Lengths, Sums
from holdfast.policy.estimate.replica_capacity import Capacity


@value
class ClassWork:
    """Batch requests of one class: `unfinished` ones, None where engines do not say, and `done` ones, a decayed count.

    `asked` has the rates that it asked for, for as long as its work may take: a rate that falls with the work that is
    left would never end it.
    """

    of: BatchClass
    unfinished: float | None = None
    done: float = 0.0
    asked: Peaks = field(default_factory=Peaks)

    @property
    def done_rps(self) -> float:
        """Rate at which they were done in the last minutes, requests/s."""
        return self.done / MEMORY_SECONDS


@value
class BatchWork:
    """The batch work of a service, and the `lengths` of what was done."""

    classes: tuple[ClassWork, ...] = ()
    lengths: Lengths = Lengths(Sums())


@value
class BatchAsk:
    """The class that asks for most; `rate_rps` in requests as long as all others, which ask for `others_rps`."""

    by: ClassWork
    rate_rps: float
    others_rps: float


def watch_batch(memory: BatchWork, seen: Seen, classes: Sequence[BatchClass], lead: float, now: float) -> BatchWork:
    """Add one tick. Where data is missing or doubtful, a class asks for what it asked for last."""
    if not classes:
        return BatchWork()
    known, before, interval = {each.of.name: each for each in memory.classes}, memory.lengths, seen.interval_seconds
    usable, passed = seen.fresh and seen.visible, now - (before.counted_at or 0.0)
    share = min(max(0.0, passed), interval) / interval if usable else 0.0
    kept = 1.0 / (1.0 + share * interval / MEMORY_SECONDS)
    told = {each.name: each for each in seen.batch.classes} if usable else {}
    works = [_counted(known.get(each.name), each, told.get(each.name), kept, share) for each in classes]
    lengths = Lengths(before.sums.times(kept).plus(_sums(seen.batch).times(share)), now) if usable else before
    return BatchWork(tuple([replace(each, asked=_asked(each, works, lead, now)) for each in works]), lengths)


def _sums(batch: BatchTraffic) -> Sums:
    own = batch.done, batch.prompt_tokens, batch.output_tokens
    return Sums(*own, batch.started_tokens, min(batch.cached_tokens, batch.started_tokens))


def _counted(
    before: ClassWork | None, of: BatchClass, told: BatchClassTraffic | None, kept: float, share: float
) -> ClassWork:
    before = before or ClassWork(of)
    if told is None:
        return replace(before, of=of, unfinished=None)
    return ClassWork(of, told.unfinished, kept * before.done + share * told.done, before.asked)


def _asked(own: ClassWork, works: Sequence[ClassWork], lead_seconds: float, now: float) -> Peaks:
    """What a class asks for so that its work, and what starts before it, is done in the time that a start leaves.

    Nothing is added where all of that would be done at the present rate.
    """
    within = own.of.finish_seconds
    if within is None or own.unfinished == 0.0:
        return Peaks()
    if own.unfinished is None:
        return own.asked
    ahead = sum(each.unfinished or 0.0 for each in works if each.of.priority >= own.of.priority)
    seconds, done_rps = max(within - lead_seconds, 0.5 * within), sum(each.done_rps for each in works)
    return remember_level(own.asked, 0.0 if ahead <= done_rps * seconds else ahead / seconds, now, within)


def with_batch(
    demand_rps: float | None, level_rps: float, memory: BatchWork, capacity: Capacity, accelerator: str
) -> tuple[float | None, BatchAsk | None]:
    """Return the rate to size for, and what batch work asks for where it decides that.

    Batch work runs in what is left of the rate that replicas are sized for, so it asks for more only where it and the
    arrivals of now (`level_rps`) come to more than that.
    """
    most = max(memory.classes, key=lambda each: each.asked.level_rps, default=None)
    if demand_rps is None or most is None or not most.asked.level_rps > 0.0:
        return demand_rps, None
    rate_rps = most.asked.level_rps * _work(memory.lengths, capacity, accelerator)
    needed = level_rps + rate_rps
    return (needed, BatchAsk(most, rate_rps, demand_rps)) if needed > demand_rps else (demand_rps, None)


def _work(lengths: Lengths, capacity: Capacity, accelerator: str) -> float:
    """Work of a batch request that was done, in requests of the mean length of all others; 1 where that is unknown."""
    belief = capacity.belief(accelerator)
    if belief is None or capacity.mix is None or lengths.sums.requests < 1.0:
        return 1.0
    return belief.rate.relative_work(capacity.mix, lengths.mix(LengthHistogram(), LengthHistogram())) / belief.work
