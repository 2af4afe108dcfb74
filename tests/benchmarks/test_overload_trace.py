"""The requests of a run."""

from __future__ import annotations

import itertools
import json
import math

import pytest

from benchmarks.engine_overload.cells import CODE, CONVERSATION, Mix, Window
from benchmarks.engine_overload.trace import arrivals, mean_tokens, to_jsonl

WINDOW = Window(10.0, 30.0, 3.0)


@pytest.mark.parametrize("mix", [CONVERSATION, CODE])
def test_every_seed_brings_the_same_number_of_requests_and_nearly_the_same_work(mix: Mix) -> None:
    work = []
    for seed in range(5):
        inside = [each for each in arrivals(mix, 16.0, WINDOW, seed) if 10.0 <= each.at_seconds < 40.0]
        assert len(inside) == 480
        work.append(sum(each.prompt_tokens for each in inside))
    assert max(work) / min(work) < 1.1


def test_the_same_seed_gives_the_same_trace_and_another_one_another() -> None:
    assert arrivals(CODE, 9.0, WINDOW, 3) == arrivals(CODE, 9.0, WINDOW, 3)
    assert arrivals(CODE, 9.0, WINDOW, 3) != arrivals(CODE, 9.0, WINDOW, 4)


def test_arrivals_come_in_order_as_irregularly_as_poisson_ones() -> None:
    moments = [each.at_seconds for each in arrivals(CONVERSATION, 50.0, Window(0.0, 40.0, 0.0), 0)]
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert min(gaps) >= 0.0
    assert deviation / mean == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("mix", [CONVERSATION, CODE])
def test_lengths_average_to_little_less_than_the_distribution(mix: Mix) -> None:
    for lengths in (mix.prompt, mix.output):
        assert 0.85 * lengths.mean < mean_tokens(lengths) <= lengths.mean


def test_no_two_runs_share_a_prompt() -> None:
    requests = arrivals(CODE, 9.0, WINDOW, 3)
    lines = [json.loads(line) for run in (1, 2) for line in to_jsonl(requests, run).splitlines()]
    names = [tuple(line["hash_ids"]) for line in lines]
    assert len(set(names)) == len(names) == 2 * len(requests)
    assert all(line["input_length"] >= 1 and line["output_length"] >= 1 for line in lines)
