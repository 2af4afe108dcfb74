"""A list of requests through one replica, offline: the scheduler loop with the step timer as its clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.domain.service import Slo
from holdfast.enginemodel.scheduler import Scheduler, SchedulerLimits, Sequence
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
    """Every request's outcome, in order of arrival. A step takes in whoever arrived before it began.

    Whether a request is admitted is decided the moment it arrives, as vLLM's API server does: prompts that the step
    under way computes still count as queued.
    """
    queue = sorted(arrivals, key=lambda arrival: arrival.at)
    sequences: list[Sequence | None] = []

    def arrive(until: float) -> None:
        while len(sequences) < len(queue) and queue[len(sequences)].at <= until:
            clock.now = max(clock.now, queue[len(sequences)].at)
            sequences.append(_admitted(scheduler, queue[len(sequences)]))
        clock.now = until

    while len(sequences) < len(queue) or scheduler.unfinished:
        if not scheduler.unfinished:
            arrive(max(clock.now, queue[len(sequences)].at))
        if scheduler.unfinished:
            plan = scheduler.step(clock.now)
            arrive(clock.now + plan.seconds(timer))
            scheduler.complete(plan, clock.now)
    return [_outcome(arrival, sequence) for arrival, sequence in zip(queue, sequences, strict=True)]


def _admitted(scheduler: Scheduler, arrival: Arrival) -> Sequence | None:
    """The queued sequence, None where an admission cap or the size of the KV cache refuses it."""
    if scheduler.refuse(arrival.prompt_tokens) is not None or not scheduler.fits(
        arrival.prompt_tokens, arrival.output_tokens
    ):
        return None
    sequence = Sequence(arrival.prompt_tokens, arrival.output_tokens, arrival.at, arrival.cached_tokens)
    scheduler.add(sequence)
    return sequence


def _outcome(arrival: Arrival, sequence: Sequence | None) -> ReplayedRequest:
    if sequence is None or sequence.first_token_at is None or sequence.last_token_at is None:
        return ReplayedRequest(arrival, REJECTED_SECONDS, REJECTED_SECONDS, REJECTED_SECONDS)
    decoding = sequence.last_token_at - sequence.first_token_at
    return ReplayedRequest(
        arrival,
        ttft_seconds=sequence.first_token_at - arrival.at,
        tpot_seconds=decoding / (sequence.generated - 1) if sequence.generated > 1 else 0.0,
        e2e_seconds=sequence.last_token_at - arrival.at,
        preemptions=sequence.preemptions,
    )
