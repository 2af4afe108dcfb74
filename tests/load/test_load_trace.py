"""Reading traces and building load steps from them."""

import collections
import itertools
import math
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.load import trace
from e2e.load.trace import Arrival, LoadStep, TraceError

EXCERPT = pathlib.Path(__file__).parents[2] / "examples/traces/azure-conv-excerpt.csv"


def test_azure_timestamps_with_seven_digits_become_seconds_from_the_first(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 23:59:59.5000000,374,44\n2023-11-17 00:00:01.0000009,396,109\n"
    )
    first, second = trace.read(path)
    assert first == Arrival(0.0, 374, 44)
    assert second.at_seconds == pytest.approx(1.5)
    assert second.prompt_tokens == 396


@pytest.mark.parametrize(
    "text",
    [
        "",
        "when,in,out\n1,2,3\n",
        "arrival_seconds,prompt_tokens,output_tokens\nsoon,2,3\n",
        "arrival_seconds,prompt_tokens,output_tokens\nnan,2,3\n",
        "arrival_seconds,prompt_tokens,output_tokens\ninf,2,3\n",
        "arrival_seconds,prompt_tokens,output_tokens\n1,-2,3\n",
        "arrival_seconds,prompt_tokens,output_tokens\n1,2\n",
    ],
)
def test_what_is_no_trace_is_refused_with_the_files_name(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "broken.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"broken\.csv"):
        trace.read(path)


def test_written_arrivals_read_back(tmp_path: pathlib.Path) -> None:
    arrivals = [Arrival(0.0, 1, 2), Arrival(1.25, 30, 40)]
    trace.write_csv(tmp_path / "t.csv", arrivals)
    assert trace.read(tmp_path / "t.csv") == arrivals


def test_a_window_begins_at_zero_and_excludes_its_end() -> None:
    arrivals = [Arrival(float(second), 1, 1) for second in range(10)]
    assert [arrival.at_seconds for arrival in trace.window(arrivals, 3, 5)] == [0.0, 1.0]


def test_the_excerpt_is_the_recording_it_says_it_is() -> None:
    arrivals = trace.read(EXCERPT)
    assert len(arrivals) == 8970
    assert trace.inter_arrival_cv(arrivals) == pytest.approx(1.04, abs=0.01)
    assert EXCERPT.stat().st_size < 200_000


def test_the_load_triples_inside_the_step_and_nowhere_else() -> None:
    step = LoadStep(base_rps=2.0, factor=3.0, start_seconds=120, end_seconds=240, duration_seconds=360)
    load = trace.stepped(trace.read(EXCERPT), step)
    before, inside, after = (len(trace.window(load, start, start + 120)) / 120 for start in (0, 120, 240))
    assert before == pytest.approx(2.0, rel=0.25)
    assert after == pytest.approx(2.0, rel=0.25)
    assert inside == pytest.approx(6.0, rel=0.25)


def test_a_step_keeps_lengths_and_burstiness_as_recorded() -> None:
    recorded = trace.read(EXCERPT)
    step = LoadStep(base_rps=2.0, factor=3.0, start_seconds=0, end_seconds=360, duration_seconds=360)
    load = trace.stepped(recorded, step)
    assert trace.inter_arrival_cv(load) == pytest.approx(1.04, abs=0.12)
    mean = sum(arrival.output_tokens for arrival in load) / len(load)
    slices = trace.window(recorded, 0, 720)
    assert mean == pytest.approx(sum(arrival.output_tokens for arrival in slices) / len(slices), rel=0.1)


def test_the_peak_of_a_step_at_the_recorded_rate_is_the_recording_itself() -> None:
    recorded = [Arrival(0.5 * k, k, 1) for k in range(400)]
    step = LoadStep(base_rps=2 / 3, factor=3.0, start_seconds=30, end_seconds=60, duration_seconds=100)
    load = trace.stepped(recorded, step)
    assert trace.window(load, 30, 60) == trace.window(recorded, 30, 60)


def test_a_recording_too_short_for_the_peak_is_refused_with_a_remedy() -> None:
    recorded = [Arrival(float(k), 1, 1) for k in range(100)]
    with pytest.raises(TraceError, match="lower the base rate"):
        trace.stepped(recorded, LoadStep(1.0, 3.0, 10, 20, 60))
    with pytest.raises(TraceError, match="0 requests"):
        trace.stepped([], LoadStep(1.0, 3.0, 10, 20, 60))


@given(seed=st.integers(0, 1000), factor=st.floats(1.0, 4.0), base=st.floats(0.1, 1.2))
def test_a_schedule_is_the_same_for_the_same_seed_ordered_and_made_of_recorded_requests_only(
    seed: int, factor: float, base: float
) -> None:
    recorded = [Arrival(0.25 * k, k, k % 7) for k in range(2000)]
    step = LoadStep(base, factor, 20, 40, 60)
    load = trace.stepped(recorded, step, seed)
    assert load == trace.stepped(recorded, step, seed)
    assert all(a.at_seconds <= b.at_seconds < 60 for a, b in itertools.pairwise(load))
    used = collections.Counter(arrival.prompt_tokens for arrival in load)
    assert max(used.values(), default=1) == 1
    assert all(recorded[arrival.prompt_tokens].output_tokens == arrival.output_tokens for arrival in load)


@given(factor=st.floats(0.01, 100))
def test_playing_faster_keeps_the_coefficient_of_variation(factor: float) -> None:
    arrivals = [Arrival(k * k / 10, 1, 1) for k in range(20)]
    scaled = trace.scale_rate(arrivals, factor)
    assert trace.inter_arrival_cv(scaled) == pytest.approx(trace.inter_arrival_cv(arrivals))


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_no_sensible_factor_no_scaling(factor: float) -> None:
    with pytest.raises(TraceError):
        trace.scale_rate([], factor)


def test_the_variation_of_too_few_arrivals_is_unknown() -> None:
    assert math.isnan(trace.inter_arrival_cv([]))
    assert math.isnan(trace.inter_arrival_cv([Arrival(0, 1, 1)] * 5))


def test_lengths_are_clipped_to_what_the_model_holds() -> None:
    (clipped,) = trace.clip_lengths([Arrival(0, 9000, 0)], max_prompt=4096, max_output=512)
    assert (clipped.prompt_tokens, clipped.output_tokens) == (4096, 1)
