"""The scheduler loop: vLLM's rules one by one, and what is conserved whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.enginemodel.scheduler import (
    BLOCK_TOKENS,
    RejectReason,
    Scheduler,
    SchedulerLimits,
    Sequence,
    SequenceStatus,
)


def scheduler(
    max_num_seqs: int = 8, max_num_batched_tokens: int = 100, kv_tokens: int = 16_000, **more: int
) -> Scheduler:
    return Scheduler(SchedulerLimits(max_num_seqs, max_num_batched_tokens, kv_tokens, **more))


def queued(engine: Scheduler, prompt: int, output: int, *, at: float = 0.0, cached: int = 0) -> Sequence:
    sequence = Sequence(prompt, output, at, cached)
    engine.add(sequence)
    return sequence


def run_step(engine: Scheduler, now: float) -> list[Sequence]:
    return engine.complete(engine.step(now), now + 1.0)


def test_a_prompt_that_ends_in_a_step_gives_its_first_token_in_it() -> None:
    engine = scheduler()
    sequence = queued(engine, 40, 3)
    assert run_step(engine, 0.0) == [sequence]
    assert (sequence.first_token_at, sequence.generated, sequence.computed) == (1.0, 1, 40)


def test_a_long_prompt_is_cut_at_the_token_budget() -> None:
    engine = scheduler(max_num_batched_tokens=100)
    sequence = queued(engine, 250, 2)
    chunks = [engine.step(float(step)).prefills for step in range(3)]
    assert [[(chunk, prefix) for _, chunk, prefix in step] for step in chunks] == [
        [(100, 0)],
        [(100, 100)],
        [(50, 200)],
    ]
    assert sequence.computed == 250


def test_running_sequences_come_before_waiting_ones() -> None:
    engine = scheduler(max_num_batched_tokens=100)
    first = queued(engine, 50, 5)
    run_step(engine, 0.0)
    queued(engine, 120, 5)
    plan = engine.step(1.0)
    assert plan.decodes == (first,)
    assert [chunk for _, chunk, _ in plan.prefills] == [99]


def test_a_decode_reads_the_kv_of_everything_before_it() -> None:
    engine = scheduler()
    queued(engine, 40, 5)
    run_step(engine, 0.0)
    assert engine.step(1.0).decode_kv_tokens == 41


def test_waiting_ones_stay_out_beyond_the_sequence_limit() -> None:
    engine = scheduler(max_num_seqs=2)
    for _ in range(3):
        queued(engine, 10, 4)
    engine.step(0.0)
    assert (len(engine.running), len(engine.waiting)) == (2, 1)


def test_the_active_cap_is_below_the_sequence_limit() -> None:
    engine = scheduler(max_num_seqs=4, max_num_active_seqs=1)
    queued(engine, 10, 4)
    queued(engine, 10, 4)
    engine.step(0.0)
    assert len(engine.running) == 1


def test_a_prompt_waits_until_blocks_for_all_of_it_are_free() -> None:
    engine = scheduler(max_num_batched_tokens=1000, kv_tokens=160)
    queued(engine, 96, 4)
    queued(engine, 96, 4)
    plan = engine.step(0.0)
    assert len(plan.prefills) == 1
    assert len(engine.waiting) == 1


def test_the_youngest_is_preempted_and_computes_prompt_and_answer_again() -> None:
    engine = scheduler(max_num_batched_tokens=1000, kv_tokens=96)
    elder, younger = queued(engine, 46, 40), queued(engine, 46, 40)
    for step in range(3):
        assert len(run_step(engine, float(step))) == 2
    plan = engine.step(3.0)
    assert plan.preempted == (younger,)
    assert plan.decodes == (elder,)
    assert (younger.status, younger.blocks, younger.computed) == (SequenceStatus.WAITING, 0, 0)
    engine.complete(plan, 4.0)
    time = 4.0
    while elder.status is SequenceStatus.RUNNING:
        run_step(engine, time)
        time += 1.0
    plan = engine.step(time)
    assert [(chunk, prefix) for _, chunk, prefix in plan.prefills] == [(46 + 3, 0)]
    assert younger.preemptions == 1


def test_nothing_is_admitted_in_a_step_that_preempts() -> None:
    engine = scheduler(max_num_batched_tokens=1000, kv_tokens=96)
    queued(engine, 46, 40), queued(engine, 46, 40)
    for step in range(3):
        run_step(engine, float(step))
    queued(engine, 1, 1)
    plan = engine.step(3.0)
    assert plan.preempted
    assert not plan.admitted


def test_cached_blocks_are_not_computed_but_the_last_token_is() -> None:
    engine = scheduler(max_num_batched_tokens=1000)
    queued(engine, 64, 2, cached=64)
    assert [(chunk, prefix) for _, chunk, prefix in engine.step(0.0).prefills] == [(16, 48)]


def test_the_threshold_cuts_long_prompts() -> None:
    engine = scheduler(max_num_batched_tokens=1000, long_prefill_token_threshold=64)
    queued(engine, 200, 2)
    assert [chunk for _, chunk, _ in engine.step(0.0).prefills] == [64]


def test_requests_are_refused_at_the_request_cap_first() -> None:
    engine = scheduler(max_num_queued_reqs=1, max_num_queued_tokens=5)
    assert engine.rejection() is None
    queued(engine, 10, 2)
    assert engine.rejection() is RejectReason.REQUESTS


def test_the_token_cap_counts_prompts_until_their_first_token() -> None:
    engine = scheduler(max_num_queued_tokens=50)
    assert engine.rejection() is None
    queued(engine, 80, 2)
    assert engine.rejection() is RejectReason.TOKENS
    run_step(engine, 0.0)
    assert engine.rejection() is None


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (-1, 5)])
def test_empty_requests_are_refused(prompt: int, output: int) -> None:
    with pytest.raises(ValueError, match="at least one prompt"):
        queued(scheduler(), prompt, output)


def test_a_request_that_could_never_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="exceed the KV cache"):
        queued(scheduler(kv_tokens=64), 60, 10)


def test_an_aborted_request_frees_everything_even_within_a_step() -> None:
    engine = scheduler()
    sequence = queued(engine, 40, 5)
    plan = engine.step(0.0)
    engine.abort(sequence)
    assert engine.complete(plan, 1.0) == []
    assert engine.free_blocks == engine.total_blocks
    assert engine.queued_prompt_tokens == 0
    assert engine.unfinished == 0


def test_aborting_twice_changes_nothing() -> None:
    engine = scheduler()
    sequence = queued(engine, 40, 5)
    engine.abort(sequence)
    engine.abort(sequence)
    assert engine.queued_prompt_tokens == 0


requests = st.lists(
    st.tuples(st.integers(1, 300), st.integers(1, 40), st.integers(0, 30), st.integers(0, 300)), min_size=1, max_size=25
)


@given(
    requests,
    st.integers(1, 6),
    st.integers(1, 128),
    st.integers(352, 1200),
    st.sets(st.integers(0, 24), max_size=5),
)
def test_everything_is_conserved(
    given_requests: list[tuple[int, int, int, int]], seqs: int, budget: int, kv_tokens: int, aborted: set[int]
) -> None:
    engine = scheduler(max_num_seqs=seqs, max_num_batched_tokens=budget, kv_tokens=kv_tokens)
    sequences: list[Sequence] = []
    upcoming = sorted(given_requests, key=lambda request: request[2])
    finished = steps = 0
    while upcoming or engine.unfinished:
        now = float(steps)
        while upcoming and upcoming[0][2] <= now:
            prompt, output, _, cached = upcoming.pop(0)
            sequences.append(queued(engine, prompt, output, at=now, cached=cached))
        plan = engine.step(now)
        if steps in aborted and sequences:
            engine.abort(sequences[steps % len(sequences)])
        emitted = engine.complete(plan, now + 0.5)
        finished += sum(sequence.status is SequenceStatus.FINISHED for sequence in emitted)
        check_conservation(engine, sequences, finished)
        assert plan.tokens <= budget
        assert plan.tokens > 0 or not engine.running
        steps += 1
        assert steps < 20_000
    assert engine.free_blocks == engine.total_blocks
    for sequence in sequences:
        if sequence.status is SequenceStatus.FINISHED:
            assert sequence.generated == sequence.output_tokens
            assert sequence.arrived_at <= (sequence.scheduled_at or 0) < (sequence.first_token_at or 0)
            assert (sequence.first_token_at or 0) <= (sequence.last_token_at or 0)


def check_conservation(engine: Scheduler, sequences: list[Sequence], finished: int) -> None:
    aborted = sum(sequence.status is SequenceStatus.FINISHED_ABORTED for sequence in sequences)
    assert len(sequences) == finished + aborted + len(engine.running) + len(engine.waiting)
    assert engine.free_blocks + sum(sequence.blocks for sequence in sequences) == engine.total_blocks
    assert engine.free_blocks >= 0
    assert len(engine.running) <= engine.limits.max_num_seqs
    assert engine.queued_prompt_tokens == sum(
        sequence.prompt_tokens
        for sequence in sequences
        if sequence.prefilling and sequence.status in (SequenceStatus.WAITING, SequenceStatus.RUNNING)
    )
    for sequence in engine.running:
        assert sequence.computed <= sequence.blocks * BLOCK_TOKENS
