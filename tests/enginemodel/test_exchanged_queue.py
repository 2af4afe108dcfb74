"""The scheduler loop under a waiting queue and limits that change while it runs."""

from __future__ import annotations

from holdfast.enginemodel.scheduler import FirstComeQueue, Refusal, RejectReason, Scheduler, SchedulerLimits, Sequence


class LastComeQueue(FirstComeQueue):
    """Last come, first served."""

    def add_request(self, request: Sequence) -> None:
        self.appendleft(request)


def loop(**more: int) -> Scheduler:
    return Scheduler(SchedulerLimits(max_num_seqs=4, max_num_batched_tokens=100, kv_tokens=16_000, **more))


def test_the_queue_says_who_starts() -> None:
    engine = loop()
    engine.waiting = LastComeQueue()
    first, second = Sequence(60, 2, 0.0), Sequence(60, 2, 0.0)
    engine.add(first)
    engine.add(second)
    assert [each for each, _, _ in engine.step(0.0).prefills] == [second, first]


def test_limits_hold_from_the_next_step_on() -> None:
    engine = loop()
    for _ in range(4):
        engine.add(Sequence(40, 9, 0.0))
    engine.active_sequences, engine.tokens_per_step = 1, 30
    assert engine.step(0.0).tokens == 30
    assert len(engine.running) == 1
    engine.active_sequences, engine.tokens_per_step = 3, 100
    assert engine.step(1.0).tokens == 10 + 2 * 40
    assert len(engine.running) == 3


def test_a_lower_limit_evicts_nobody() -> None:
    engine = loop()
    for _ in range(2):
        engine.add(Sequence(40, 9, 0.0))
    engine.complete(engine.step(0.0), 1.0)
    engine.active_sequences = 1
    assert len(engine.step(1.0).decodes) == 2


def test_a_refusal_names_the_cap() -> None:
    engine = loop(max_num_queued_reqs=1)
    assert engine.refuse(10) is None
    engine.add(Sequence(40, 9, 0.0))
    assert engine.refuse(10) == Refusal(RejectReason.REQUESTS)
