"""What batch work asks for where it would not be done in time by what all other requests leave.

Source: docs/designs/0032-batch.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from holdfast.domain.service import BatchClass
from holdfast.domain.signals import BatchClassTraffic, LengthHistogram
from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value
from holdfast.policy.estimate.demand import Peaks, remember_level
from holdfast.policy.estimate.length_mix import MEMORY_SECONDS, Lengths, Sums
from holdfast.policy.estimate.replica_capacity import Capacity

KNOWN_SECONDS = 0.5 * MEMORY_SECONDS
"""Time after which the rate at which requests are done is known; a start is waited for no longer than it takes."""


@value
class ClassWork:
    """Batch requests of one class: `unfinished` ones, None where engines do not say, and `done` ones in `seconds`.

    The last two decay. `asked` has the rates that it asked for, for as long as its work may take: a rate that falls
    with the work that is left would never end it.
    """

    of: BatchClass
    unfinished: float | None = None
    done: float = 0.0
    seconds: float = 0.0
    asked: Peaks = field(default_factory=Peaks)

    @property
    def done_rps(self) -> float:
        """Rate at which they were done in the last minutes, requests/s."""
        return self.done / self.seconds if self.seconds > 0.0 else 0.0


@value
class BatchWork:
    """The batch work of a service, and the `lengths` of what was done."""

    classes: tuple[ClassWork, ...] = ()
    lengths: Lengths = Lengths(Sums())


@value
class BatchAsk:
    """The class that asks for most; `rate_rps` in requests as long as all others."""

    by: ClassWork
    rate_rps: float


def watch_batch(memory: BatchWork, seen: Seen, classes: Sequence[BatchClass], lead: float, now: float) -> BatchWork:
    """Add one tick. Where data is missing or doubtful, a class asks for what it asked for last."""
    if not classes:
        return BatchWork()
    known, before, interval = {each.of.name: each for each in memory.classes}, memory.lengths, seen.interval_seconds
    usable = seen.fresh and seen.visible
    passed = min(max(0.0, now - (before.counted_at or 0.0)), interval) if usable else 0.0
    share, kept = passed / interval if usable else 0.0, 1.0 / (1.0 + passed / MEMORY_SECONDS)
    told = {each.name: each for each in seen.batch.classes} if usable else {}
    olds = [replace(known.get(each.name) or ClassWork(each), of=each) for each in classes]
    works = [_counted(old, told.get(old.of.name), kept, share, passed) for old in olds]
    batch = seen.batch
    own = batch.done, batch.prompt_tokens, batch.output_tokens, batch.started_tokens
    sums = Sums(*own, min(batch.cached_tokens, batch.started_tokens)).times(share)
    lengths = Lengths(before.sums.times(kept).plus(sums), now) if usable else before
    return BatchWork(tuple([replace(each, asked=_asked(each, works, lead, now)) for each in works]), lengths)


def _counted(before: ClassWork, told: BatchClassTraffic | None, kept: float, share: float, passed: float) -> ClassWork:
    if told is None:
        return replace(before, unfinished=None)
    done, seconds = kept * before.done + share * told.done, kept * before.seconds + passed
    return ClassWork(before.of, told.unfinished, done, seconds, before.asked)


def _asked(own: ClassWork, works: Sequence[ClassWork], lead_seconds: float, now: float) -> Peaks:
    """What a class asks for so that its work, and what starts before it, is done in the time that a start leaves.

    Nothing is added where all of that would be done at the present rate, nor before that is known. What was asked for
    ends with what it does in one more start: replicas stay for as long after they are needed.
    """
    within = own.of.finish_seconds
    if within is None or own.unfinished == 0.0:
        return Peaks()
    if own.unfinished is None:
        return own.asked
    ahead = sum(each.unfinished or 0.0 for each in works if each.of.priority >= own.of.priority)
    seconds, done_rps = max(within - lead_seconds, 0.5 * within), sum(each.done_rps for each in works)
    enough = own.seconds < min(lead_seconds, KNOWN_SECONDS) or ahead <= done_rps * seconds
    asked = Peaks() if ahead <= own.asked.level_rps * lead_seconds else own.asked
    return remember_level(asked, 0.0 if enough else ahead / seconds, now, within)


def with_batch(
    demand_rps: float | None, level_rps: float, memory: BatchWork, capacity: Capacity, accelerator: str
) -> tuple[float | None, BatchAsk | None]:
    """Return the rate to size for, and what batch work asks for where it decides that.

    Replicas are sized for `demand_rps`. Batch uses what the present arrivals (`level_rps`) leave of it, so batch asks
    for more only where its rate and the arrivals together are higher.
    """
    most = max(memory.classes, key=lambda each: each.asked.level_rps, default=None)
    if demand_rps is None or most is None or not most.asked.level_rps > 0.0:
        return demand_rps, None
    rate_rps = most.asked.level_rps * _work(memory.lengths, capacity, accelerator)
    needed = level_rps + rate_rps
    return (needed, BatchAsk(most, rate_rps)) if needed > demand_rps else (demand_rps, None)


def _work(lengths: Lengths, capacity: Capacity, accelerator: str) -> float:
    """Work of a batch request that was done, in requests of the mean length of all others; 1 where that is unknown."""
    belief = capacity.belief(accelerator)
    if belief is None or capacity.mix is None or lengths.sums.requests < 1.0:
        return 1.0
    return belief.rate.relative_work(capacity.mix, lengths.mix(LengthHistogram(), LengthHistogram())) / belief.work
