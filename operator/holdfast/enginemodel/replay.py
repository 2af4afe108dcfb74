"""A list of requests through one replica, offline: the scheduler loop with the step timer as its clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.domain.service import Slo
from holdfast.enginemodel.enginetimer import host_of, within
from holdfast.enginemodel.frontdesk import FrontDesk
from holdfast.enginemodel.pipeline import Pipeline
from holdfast.enginemodel.scheduler import AtDoor, Scheduler, SchedulerLimits, Sequence
from holdfast.enginemodel.steplaw import StepTimer


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when it comes in seconds, and its lengths in tokens."""

    at: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ReplayedRequest:
    """What became of a request, in seconds; infinite for a rejected one. TPOT of a single token is 0."""

    arrival: Arrival
    ttft_seconds: float
    tpot_seconds: float
    e2e_seconds: float
    preemptions: int = 0

    def good(self, slo: Slo) -> bool:
        """Whether it met every objective."""
        in_time = self.ttft_seconds <= slo.ttft_seconds and self.tpot_seconds <= slo.tpot_seconds
        return in_time and (slo.e2e_seconds is None or self.e2e_seconds <= slo.e2e_seconds)


REJECTED_SECONDS = float("inf")


@dataclass(slots=True)
class ReplayClock:
    """The time of a replay in seconds, for what the scheduler has that wants to read a clock."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def replay(arrivals: Iterable[Arrival], limits: SchedulerLimits, timer: StepTimer) -> list[ReplayedRequest]:
    """Every request's outcome, in order of arrival, on a scheduler with these limits."""
    return replay_on(Scheduler(limits), arrivals, timer, ReplayClock())


def replay_on(
    scheduler: Scheduler, arrivals: Iterable[Arrival], timer: StepTimer, clock: ReplayClock
) -> list[ReplayedRequest]:
    """Every request's outcome as its client saw it, in order of arrival. A step takes in requests that came before it.

    Whether a request is admitted is decided when it has been read, as in vLLM: prompts that the step under way computes
    still count as queued. The fast loop decides before that, when the API server has written all tokens; without it
    tokens and requests are taken in the order in which they come, as in the compiled twin.
    """
    queue = deque(sorted(arrivals, key=lambda arrival: arrival.at))
    served: list[tuple[Arrival, Sequence]] = []
    entering: deque[tuple[float, Sequence]] = deque()
    held: deque[Sequence] = deque()
    limits = scheduler.limits
    timer = within(timer, limits.max_num_seqs, limits.max_num_batched_tokens)
    pipeline, desk = Pipeline(timer), FrontDesk(host_of(timer).front_end)
    while queue or entering or held or pipeline.due < math.inf:
        enters_at = entering[0][0] if entering else math.inf
        read_at = queue[0].at if queue else math.inf
        if scheduler.has_door:
            read_at = max(read_at, desk.free_at)
        if held and (min(read_at, enters_at, pipeline.due) == math.inf or scheduler.opens_door(clock.now)):
            sequence = held.popleft()
            entering.append((desk.read(clock.now, sequence.prompt_tokens)[1], sequence))
        elif read_at <= min(enters_at, pipeline.due) and not scheduler.has_door:
            arrival = queue.popleft()
            begun_at, enters_at = desk.read(arrival.at, arrival.prompt_tokens)
            sequence = Sequence(arrival.prompt_tokens, arrival.output_tokens, begun_at, arrival.cached_tokens)
            served.append((arrival, sequence))
            entering.append((enters_at, sequence))
        elif read_at <= min(enters_at, pipeline.due):
            clock.now, arrival = max(clock.now, read_at), queue.popleft()
            sequence = Sequence(arrival.prompt_tokens, arrival.output_tokens, clock.now, arrival.cached_tokens)
            sequence.sent_at = arrival.at
            served.append((arrival, sequence))
            _look_at(scheduler, desk, sequence, clock.now, entering, held)
        elif enters_at <= pipeline.due:
            clock.now = max(clock.now, enters_at)
            if _enters(scheduler, entering.popleft()[1]):
                pipeline.wake(clock.now)
        else:
            clock.now = pipeline.due
            if pipeline.ending:
                emitted = pipeline.end(scheduler, clock.now)
                desk.write(emitted, clock.now)
                scheduler.written(emitted)
                for sequence in scheduler.too_old():
                    scheduler.abort(sequence)
            pipeline.begin(scheduler, clock.now)
    return [_outcome(arrival, sequence) for arrival, sequence in served]


def _look_at(
    scheduler: Scheduler,
    desk: FrontDesk,
    sequence: Sequence,
    now: float,
    entering: deque[tuple[float, Sequence]],
    held: deque[Sequence],
) -> None:
    """Read a request, unless it is turned away or waits at the door."""
    waited_seconds = now - (now if sequence.sent_at is None else sequence.sent_at)
    found = scheduler.at_door(sequence, waited_seconds, [each for _, each in entering])
    if found is AtDoor.ENTERS:
        entering.append((desk.read(now, sequence.prompt_tokens)[1], sequence))
        return
    desk.turn_away(now)
    if found is AtDoor.WAITS:
        held.append(sequence)


def _enters(scheduler: Scheduler, sequence: Sequence) -> bool:
    """Queue a request; False where an admission cap or the size of the KV cache refuses it."""
    if scheduler.refuse(sequence.prompt_tokens, past_door=True) is not None or not scheduler.fits(
        sequence.prompt_tokens, sequence.output_tokens
    ):
        return False
    scheduler.add(sequence)
    return True


def _outcome(arrival: Arrival, sequence: Sequence) -> ReplayedRequest:
    if sequence.first_seen_at is None or sequence.last_seen_at is None or sequence.generated < sequence.output_tokens:
        return ReplayedRequest(arrival, REJECTED_SECONDS, REJECTED_SECONDS, REJECTED_SECONDS)
    decoding = sequence.last_seen_at - sequence.first_seen_at
    return ReplayedRequest(
        arrival,
        ttft_seconds=sequence.first_seen_at - arrival.at,
        tpot_seconds=decoding / (sequence.generated - 1) if sequence.generated > 1 else 0.0,
        e2e_seconds=sequence.last_seen_at - arrival.at,
        preemptions=sequence.preemptions,
    )
