"""Static batches against continuous batching."""

from __future__ import annotations

import argparse
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.main import build_parser, main
from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord
from holdfast.tools.bench.runs import batching, loads
from holdfast.tools.bench.runs.batching import CELLS, Cell, measured
from tests.emulator.emulator_builders import engine
from tests.tools.bench.bench_builders import record
from tests.tools.bench.test_bench_command import BASE, CALM, bench

STATIC, CONTINUOUS = Cell(True, True), Cell(False, True)


def asked(*given: str) -> argparse.Namespace:
    return build_parser(["bench"]).parse_args(["bench", "--url", "http://x", *given])


def pair(long_seconds: float, begins: float = 0.0, index: int = 0) -> list[RequestRecord]:
    """A batch of an answer of a second and a longer one."""
    return [record((1.0,), at=begins, index=index), record((long_seconds,), at=begins, index=index + 1)]


def test_a_short_answer_waits_for_the_longer_one_of_its_batch() -> None:
    found = measured(STATIC, [*pair(3.0), *pair(2.0, 3.0, 2)], 2)
    assert (found.request_rps, found.output_tokens_per_second) == (4 / 5.0, 4 / 5.0)
    assert found.waiting_seconds == pytest.approx((2.0 + 0.0 + 1.0 + 0.0) / 4)
    assert found.waiting_share == pytest.approx(3.0 / (2 * 5.0))


def test_a_request_that_was_never_sent_moves_no_other_one_into_its_batch() -> None:
    unsent = record((), RequestOutcome.UNREACHABLE, index=0, sent_at=math.nan)
    found = measured(STATIC, [unsent, *pair(3.0, index=0)[1:], *pair(2.0, 3.0, 2)], 2)
    assert found.waiting_seconds == pytest.approx((0.0 + 1.0 + 0.0) / 3)


def test_a_slot_that_is_filled_again_at_once_waits_for_nobody() -> None:
    found = measured(CONTINUOUS, [*pair(3.0), *pair(2.0, 3.0, 2)], 2)
    assert (found.waiting_seconds, found.waiting_share) == (0.0, 0.0)


@given(st.lists(st.floats(0.01, 100.0), min_size=2, max_size=8), st.randoms())
def test_waiting_is_counted_alike_in_any_order_and_never_negative(seconds: list[float], draw: object) -> None:
    batch = [record((each,), index=number) for number, each in enumerate(seconds)]
    found = measured(STATIC, batch, len(batch))
    assert found.waiting_share == pytest.approx(1.0 - sum(seconds) / (len(seconds) * max(seconds)), abs=1e-9)
    draw.shuffle(batch)  # type: ignore[attr-defined]
    assert measured(STATIC, batch, len(batch)).waiting_share == pytest.approx(found.waiting_share)


def test_requests_without_a_sane_moment_and_failed_ones_count_for_no_rate() -> None:
    strange = record((1.0,), index=2, ended_at=math.nan)
    failed = record((), RequestOutcome.UNREACHABLE, index=3)
    found = measured(STATIC, [*pair(3.0), strange, failed], 2)
    assert (found.finished, found.request_rps) == (2, 2 / 3.0)
    nothing = measured(STATIC, [], 8)
    assert nothing.finished == 0
    assert math.isnan(nothing.request_rps)


def test_uniform_lengths_are_the_mean_of_the_variable_ones() -> None:
    by_lengths = batching.planned(asked("--compare-batching", "4", "--prompt-tokens", "100", "--output-tokens", "60"))
    varied, alike = by_lengths[True], by_lengths[False]
    assert len(varied) == len(alike) == 4 * batching.BATCHES
    assert len({each.output_tokens for each in varied}) > 10
    assert {each.output_tokens for each in alike} == {round(sum(each.output_tokens for each in varied) / len(varied))}


def test_only_the_first_of_two_cells_with_the_same_lengths_is_sent_in_batches() -> None:
    arguments = asked("--compare-batching")
    sent = [batching.load_of(arguments, cell, []) for cell in CELLS]
    assert [(load.batches, load.concurrency) for load in sent] == [(True, 8), (False, 8), (True, 8), (False, 8)]


def test_latency_without_figures_is_vllms() -> None:
    chosen = loads.load_of(asked("--latency"))
    first = next(iter(chosen.load.planned))
    assert (chosen.load.concurrency, first.prompt_tokens, first.output_tokens) == (8, 32, 128)
    assert loads.load_of(asked("--latency", "4")).load.concurrency == 4
    assert next(iter(loads.load_of(asked("--throughput")).load.planned)).prompt_tokens == 512


async def test_the_four_are_measured_against_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ("--prompt-tokens", "20", "--output-tokens", "10", "--length-cv", "0.8")
    async with engine() as client:
        code = await bench(
            "--url", client.base, "--compare-batching", "4", "--requests", "12", *lengths, *CALM, "--json"
        )
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert (code, [each["finished"] for each in cells]) == (0, [12] * 4)
    by_cell = {(each["cell"]["static"], each["cell"]["variable"]): each for each in cells}
    assert by_cell[True, True]["waiting_share"] > by_cell[False, True]["waiting_share"] == 0.0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--compare-batching", "1"), "a batch of one waits for nobody: give 2 or more"),
        (("--compare-batching", "--records", "x.jsonl"), "--records cannot be combined with --compare-batching"),
        (("--compare-batching", "--threshold", "p99 E2E <= 1 s"), "--threshold cannot be combined"),
        (("--compare-batching", "--duration", "5s"), "--duration cannot be combined with --compare-batching"),
        (("--compare-batching", "--generator", "vllm"), "--generator vllm sends no batches"),
        (("--compare-batching", "--rate", "1"), "give one of"),
        (("--compare-batching", "--warm-up", "30s"), "--warm-up cannot be combined with --compare-batching"),
    ],
)
def test_bad_usage_of_the_comparison_is_told_in_one_line(
    given: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*BASE, *given]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
