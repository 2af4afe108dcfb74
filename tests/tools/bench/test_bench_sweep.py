"""Saturation: the search with few trials, what tells it, and a sweep of an emulated engine."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli.main import build_parser, main
from holdfast.enginemodel.catalog import find_accelerator
from holdfast.enginemodel.host import Host
from holdfast.enginemodel.phases import GpuWork
from holdfast.tools.bench.figures.engine import EngineSample, Reported, Resource, read_sample, reported
from holdfast.tools.bench.figures.results import measure
from holdfast.tools.bench.figures.sweep import (
    KEEPS_UP,
    OverSaturation,
    RateTrial,
    SaturationSearch,
    SweepLoad,
    SweepResult,
    kept_up,
    rises,
    saturation,
)
from holdfast.tools.bench.load.load_generator import ClientTooSlow, Endpoint, LatencyBounds, Planned
from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord
from holdfast.tools.bench.pages import sweeppage
from holdfast.tools.bench.runs.trials import sweep_load
from tests.emulator.emulator_builders import MODEL, engine
from tests.tools.bench.bench_builders import PNG, record, steady

GOOD = measure(steady(100), LatencyBounds(ttft_seconds=1.0), 0.0, 0.0)
BAD = measure(steady(100), LatencyBounds(ttft_seconds=0.1), 0.0, 0.0)
LOAD = SweepLoad("m", "http://x:8000", "chat", 2.0, 512.0, 0.0, 128.4, 1.25, "azure.csv", 30.0, 50)


async def search(carries: float, attains: float, start: float, **more: float) -> tuple[SweepResult, list[float]]:
    """An endpoint that saturates at one rate, and is good up to another."""
    tried: list[float] = []

    async def run(rate: float) -> RateTrial:
        tried.append(rate)
        return RateTrial(rate, GOOD if rate <= attains else BAD, "" if rate <= carries else "too much")

    return await SaturationSearch(run, 0.99, **more).sweep(start), tried  # type: ignore[arg-type]


@given(st.floats(0.5, 500.0), st.floats(0.3, 1.5), st.floats(0.2, 4.0))
@settings(deadline=None)
def test_both_borders_are_found_with_few_trials(carries: float, share: float, start: float) -> None:
    attains = carries * share
    found, tried = asyncio.run(search(carries, attains, start, most_trials=40, lowest_rps=0.01))
    assert found.saturates_rps is not None
    assert found.carried_rps <= carries < found.saturates_rps <= 1.1001 * found.carried_rps
    assert found.at_objective_rps <= min(attains, carries) <= 1.1001 * found.at_objective_rps
    assert len(tried) == len(set(tried)) <= 25
    assert found.operating_range_rps == (0.5 * found.carried_rps, 0.7 * found.carried_rps)


async def test_a_search_ends_where_nothing_saturates_and_where_everything_does() -> None:
    found, tried = await search(math.inf, math.inf, 1.0)
    assert (found.saturates_rps, len(tried)) == (None, 16)
    assert "not saturated" in sweeppage.told(found)[0]
    found, tried = await search(0.0, 0.0, 1.0)
    assert (found.carried_rps, found.at_objective_rps, len(tried)) == (0.0, 0.0, 4)
    assert "saturated at every tested rate" in sweeppage.told(found)[0]


@given(st.floats(1.0, 500.0), st.floats(0.01, 500.0))
@settings(deadline=None)
def test_what_was_measured_outlives_a_client_that_becomes_too_slow(client: float, attains: float) -> None:
    async def run(rate: float) -> RateTrial:
        if rate > client:
            raise ClientTooSlow(f"refused at {rate:.3g} req/s")
        return RateTrial(rate, GOOD if rate <= attains else BAD, "")

    found = asyncio.run(SaturationSearch(run, 0.99).sweep(1.0))
    assert found.refused is not None
    assert found.carried_rps == found.trials[-1].rate_rps <= client < found.refused.rate_rps
    assert found.at_objective_rps <= attains
    assert found.saturates_rps is None
    told = sweeppage.told(found)
    assert f"not saturated up to {found.carried_rps:.3g} req/s" in told[0]
    assert told[-1] == f"refused at {found.refused.rate_rps:.3g} req/s"
    assert sweeppage.as_json(found, "", LOAD)["refused"]["rate_rps"] == found.refused.rate_rps


async def test_a_client_too_slow_between_two_rates_ends_the_search_and_keeps_the_bracket() -> None:
    async def run(rate: float) -> RateTrial:
        if 8.0 < rate < 16.0:
            raise ClientTooSlow("a stall")
        return RateTrial(rate, GOOD, "" if rate <= 8.0 else "too much")

    found = await SaturationSearch(run, 0.99).sweep(8.0)
    assert (found.carried_rps, found.saturates_rps, found.at_objective_rps) == (8.0, 16.0, 8.0)
    assert sweeppage.told(found)[-1] == "a stall"


async def test_a_rate_that_a_neighbour_disturbed_once_is_tried_again() -> None:
    tried: list[float] = []

    async def run(rate: float) -> RateTrial:
        tried.append(rate)
        if tried.count(rate) == 1:
            raise ClientTooSlow("a neighbour")
        return RateTrial(rate, GOOD, "" if rate <= 8.0 else "too much")

    found = await SaturationSearch(run, 0.99).sweep(8.0)
    assert (found.carried_rps, found.refused) == (8.0, None)
    assert all(tried.count(rate) == 2 for rate in tried)


async def test_a_client_too_slow_for_the_first_rate_has_measured_nothing() -> None:
    async def run(_: float) -> RateTrial:
        raise ClientTooSlow("refused")

    with pytest.raises(ClientTooSlow):
        await SaturationSearch(run, 0.99).sweep(1.0)


def slopes(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    return rises(np.arange(float(len(values))), values)


def test_noise_does_not_rise_and_a_growing_queue_does() -> None:
    draw = np.random.default_rng(3)
    noise = [slopes(draw.gamma(2.0, 0.1, 200)) for _ in range(300)]
    assert sum(noise) <= 3
    growing = [slopes(draw.gamma(2.0, 0.1, 200) + np.linspace(0.0, 2.0, 200)) for _ in range(100)]
    assert sum(growing) >= 95


def play(ttft: Callable[[float], float], rate: float = 10.0, seconds: float = 60.0) -> OverSaturation:
    """Requests at a steady rate with such times to first token."""
    moments = np.arange(0.0, seconds, 1.0 / rate).tolist()
    stop = OverSaturation([Planned(at, 10, 10) for at in moments])
    answers = [record([ttft(at)], at=100.0 + at, index=index) for index, at in enumerate(moments)]
    for each in sorted(answers, key=lambda one: one.ended_at):
        stop.ended(each)
        if stop.stopped():
            break
    return stop


def test_a_queue_that_grows_ends_a_trial_early_and_a_steady_one_does_not() -> None:
    assert play(lambda at: 0.2 + 0.5 * at).found
    assert not play(lambda at: 0.2 + 0.01 * math.sin(at)).found
    assert not play(lambda at: 0.2, seconds=5.0).found


def test_what_is_finished_slower_than_it_arrives_is_saturated() -> None:
    behind = [record([0.2 + 0.4 * number * 0.1], at=0.1 * number, index=number) for number in range(300)]
    assert kept_up(steady(300)) == 1.0
    assert kept_up(behind) < 0.95
    assert "as fast as" in saturation(measure(behind, LatencyBounds()), behind, False)


def served(rate: float, seconds: float, seed: int, servers: int = 8, takes: float = 0.6) -> list[RequestRecord]:
    """Poisson arrivals at servers of which each takes one at a time: 13.3 requests/s are carried."""
    draw, free, answers = np.random.default_rng(seed), [0.0] * servers, []
    arrivals = np.cumsum(draw.exponential(1.0 / rate, int(rate * seconds)))
    for index, at in enumerate(arrivals):
        free.sort()
        free[0] = max(free[0], at) + takes * draw.uniform(0.5, 1.5)
        answers.append(record([free[0] - at], at=at, index=index))
    return answers


@pytest.mark.parametrize(("seconds", "found", "mistaken"), [(6.0, 38, 6), (20.0, 48, 2)])
def test_a_quarter_more_than_is_carried_is_saturated_even_in_a_short_trial_and_a_quarter_less_is_not(
    seconds: float, found: int, mistaken: int
) -> None:
    beyond = [kept_up(served(16.7, seconds, seed)) < KEEPS_UP for seed in range(50)]
    within = [kept_up(served(10.0, seconds, seed)) < KEEPS_UP for seed in range(50)]
    assert sum(beyond) >= found
    assert sum(within) <= mistaken


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (RequestOutcome.OVERLOADED, "refused"),
        (RequestOutcome.RATE_LIMITED, "refused"),
        (RequestOutcome.UNFINISHED, "unfinished"),
    ],
)
def test_refused_and_unfinished_requests_are_saturation(outcome: RequestOutcome, told: str) -> None:
    given_up = [record((), outcome, at=0.1 * number, index=number) for number in range(10)]
    records: list[RequestRecord] = [*steady(90), *given_up]
    assert told in saturation(measure(records, LatencyBounds(), 0.0, 0.0), records, False)
    assert saturation(GOOD, steady(100), False) == ""


def sweep_of(*trials: RateTrial) -> SweepResult:
    return SweepResult(trials, 0.99, 2.0, 4.0, 1.0)


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    def trial(rate: float, tokens: float, user: float) -> RateTrial:
        spread = replace(GOOD.user_tokens_per_second, p50=user)
        return RateTrial(rate, replace(GOOD, output_tokens_per_second=tokens, user_tokens_per_second=spread), "")

    found = sweep_of(trial(1.0, 100.0, 50.0), trial(2.0, 200.0, 40.0), trial(4.0, 190.0, 10.0), trial(5.0, 200.0, 40.0))
    assert [each.rate_rps for each in found.front] == [1.0, 2.0, 5.0]


def test_a_page_tells_what_was_sent_what_was_wanted_and_why_requests_were_lost() -> None:
    slo = LatencyBounds(0.6, 0.03, 20.0)
    refused = [record((), RequestOutcome.OVERLOADED, at=0.1 * number, index=number) for number in range(10)]
    lost = measure([*steady(90), *refused], slo, 0.0, 0.0)
    found = sweep_of(RateTrial(1.0, measure(steady(100), slo, 0.0, 0.0), ""), RateTrial(4.0, lost, "too much"))
    page = sweeppage.document(found, "m", LOAD, b"")
    for told in (
        *("http://x:8000 (chat)", "finished, TTFT ≤ 600 ms, TPOT ≤ 30 ms, E2E ≤ 20000 ms", "99 % good"),
        *("512 tokens each, drawn from azure.csv", "128.4 tokens (CV 1.2), drawn from azure.csv", "gamma, CV 2"),
        *("for 30 s, longer where fewer than 50 would arrive", "<td>500 / 500</td><td>100 / 100</td>"),
        *("90 tokens too slow (90.00 %); 10 refused with 503 (10.00 %)", "4 req/s: 0 of 100 requests good"),
    ):
        assert told in page
    told = sweeppage.as_json(found, "m", LOAD)
    assert told["slo"] == {"ttft_seconds": 0.6, "tpot_seconds": 0.03, "e2e_seconds": 20.0}
    assert told["load"]["prompt_tokens_mean"] == 512.0
    assert told["load"]["lengths_from"] == "azure.csv"


def test_without_bounds_nothing_is_said_of_an_objective() -> None:
    found = sweep_of(RateTrial(1.0, measure(steady(100), LatencyBounds(), 0.0, 0.0), ""))
    assert dict(sweeppage.asked(found, LOAD))["objective"] == "none: --slo gives bounds"
    assert not any("good" in line for line in sweeppage.told(found))


@pytest.mark.parametrize(
    ("given", "prompts", "answers"),
    [
        ((), "512 tokens each", "128 tokens each"),
        (("--prompt-tokens", "100", "--length-cv", "1"), "100 tokens (CV 1)", "128 tokens (CV 1)"),
        (
            ("--lengths", "lengths.csv"),
            "30 tokens (CV 0.33), drawn from lengths.csv",
            "4 tokens each, drawn from lengths.csv",
        ),
    ],
)
def test_lengths_are_told_as_they_are_drawn(
    given: tuple[str, ...], prompts: str, answers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lengths.csv").write_text("arrival_seconds,prompt_tokens,output_tokens\n0,20,4\n1,40,4\n")
    arguments = build_parser(["bench"]).parse_args(["bench", "--url", "http://x", "--sweep", *given])
    told = dict(sweeppage.asked(sweep_of(RateTrial(1.0, GOOD, "")), sweep_load(arguments, Endpoint("http://x", "m"))))
    assert (told["prompts"], told["answers"]) == (prompts, answers)


METRICS = """# HELP vllm:kv_cache_usage_perc x
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:num_requests_running{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
"""


def test_the_kv_cache_of_data_parallel_engines_is_not_counted_once_for_each() -> None:
    labels = 'block_size="16",engine="{}",kv_cache_size_tokens="16000",num_gpu_blocks="2000"'
    text = "".join(f"vllm:cache_config_info{{{labels.format(engine)}}} 1.0\n" for engine in (0, 1))
    sample = read_sample(METRICS.rpartition("vllm:cache_config_info")[0] + text)
    assert sample is not None
    assert sample.kv_tokens == 32_000.0


def test_what_an_engine_reports_is_read_and_peaks_are_kept() -> None:
    first = read_sample(METRICS)
    assert first is not None
    second = read_sample(METRICS.replace("0.25", "0.5").replace("2.0", "9.0"))
    assert second is not None
    told = reported([first, second])
    assert told is not None
    assert (told.peak_kv_tokens, told.peak_running, told.peak_waiting, told.preemptions) == (8000.0, 7.0, 3.0, 7.0)
    assert reported([]) is None


CACHED = 'vllm:prefix_cache_{}_total{{engine="0",model_name="m"}} {}\n'


@pytest.mark.parametrize(
    ("queries", "hits", "share"),
    [(1100, 550, 0.5), (1100, 50, 0.0), (100, 50, math.nan), (50, 10, math.nan), ("NaN", "NaN", math.nan)],
)
def test_the_share_of_prompts_from_the_prefix_cache_is_that_of_the_run(
    queries: object, hits: object, share: float
) -> None:
    def told(queries: object, hits: object) -> EngineSample:
        sample = read_sample(METRICS + CACHED.format("queries", queries) + CACHED.format("hits", hits))
        assert sample is not None
        return sample

    found = reported([told(100, 50), told(queries, hits)])
    assert found is not None
    assert found.cached_share == pytest.approx(share, nan_ok=True)


LIMIT = 'holdfast:limits{engine="0",model_name="m",name="active_sequences"} '


@pytest.mark.parametrize(
    ("limit", "share"), [("8.0", 0.875), ("0.0", math.nan), ("NaN", math.nan), ("e", math.nan), ("1e999", 0.0)]
)
def test_sequences_are_full_by_the_limit_that_the_plugin_tells(limit: str, share: float) -> None:
    sample = read_sample(METRICS + LIMIT + limit + "\n")
    assert sample is not None
    told = reported([sample])
    assert told is not None
    assert told.peak_sequences_share == pytest.approx(share, nan_ok=True)


@pytest.mark.parametrize(
    ("kv_usage", "waiting", "preemptions", "share", "bound"),
    [
        (0.5, 3.0, 2.0, 1.0, Resource.KV_CACHE),
        (0.97, 0.0, 0.0, 1.0, Resource.KV_CACHE),
        (0.5, 3.0, 0.0, 1.0, Resource.SEQUENCES),
        (0.5, 3.0, 0.0, 0.4, Resource.TOKENS_PER_STEP),
        (0.5, 3.0, 0.0, math.nan, Resource.SEQUENCES_OR_TOKENS),
        (0.5, 0.0, 0.0, 1.0, Resource.NONE),
        (math.nan, math.nan, 0.0, math.nan, Resource.NONE),
    ],
)
def test_what_an_engine_ran_out_of_is_told_in_words_and_in_json(
    kv_usage: float, waiting: float, preemptions: float, share: float, bound: Resource
) -> None:
    engine = Reported(3, kv_usage, 1000.0, 7.0, waiting, preemptions, peak_sequences_share=share)
    assert engine.binds is bound
    below = RateTrial(2.0, GOOD, "", replace(engine, peak_kv_usage=1.0))
    found = sweep_of(below, RateTrial(4.0, BAD, "too much"), RateTrial(5.0, BAD, "too much", engine))
    assert f"bound by {sweeppage.BOUND[bound]}" in sweeppage.told(found)[-1]
    assert sweeppage.as_json(found, "", LOAD)["binds"] == bound.value
    assert sweeppage.as_json(sweep_of(below), "", LOAD)["binds"] is None


@pytest.mark.parametrize(("flops", "bound"), [(1e12, "memory"), (1e15, "compute")])
def test_what_binds_beyond_saturation_is_told_with_its_place_under_the_roofline(flops: float, bound: str) -> None:
    engine = Reported(3, 0.5, 1000.0, 7.0, 3.0, 0.0, work=GpuWork(flops, 1e11, 10.0))
    saturated = RateTrial(4.0, replace(BAD, accelerator=find_accelerator("l40s")), "too much", engine)
    lines = sweeppage.told(sweep_of(RateTrial(2.0, GOOD, ""), saturated))
    assert lines[-1].startswith(f"{bound}-bound on l40s: {flops / 1e11:.3g} FLOP a byte of memory traffic")
    uncounted = replace(saturated, engine=replace(engine, work=None))
    assert sweeppage.told(sweep_of(uncounted))[-1].startswith("bound by ")


@pytest.mark.parametrize("text", ["", "<html>", "vllm:kv_cache_usage_perc{} much", "tgi_queue_size 3"])
def test_metrics_of_others_are_left_alone(text: str) -> None:
    assert read_sample(text) is None


@pytest.mark.slow
async def test_a_sweep_of_an_engine_is_told_in_a_table_a_page_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Four sequences at a time, four steps of 10 ms or so each: about 90 requests a second, and more are refused.
    async with engine(
        max_num_seqs=4, max_num_queued_reqs=8, speed=1.0, engine_host=Host(launch_seconds=(0.01, 0.01, 0.01))
    ) as client:
        arguments = (
            "--url",
            client.base,
            "--sweep",
            "--rate",
            "32",
            "--sweep-trials",
            "5",
            "--duration",
            "1s",
            "--max-client-lag",
            "60s",
        )
        lengths = ("--prompt-tokens", "10", "--output-tokens", "4", "--slo", "ttft=30s", "--objective", "50%")
        lengths += ("--kv-model", MODEL)
        out = ("--json", str(tmp_path / "sweep.json"), "--plot", str(tmp_path / "sweep.html"))
        out += ("--plot", str(tmp_path / "sweep.png"))
        code = await asyncio.to_thread(main, ["bench", *arguments, *lengths, *out])
    told = json.loads((tmp_path / "sweep.json").read_text())
    low, high = told["saturation_rps"]
    assert code == 0
    assert 0 < low < high <= 512, "how much a shared machine carries is its own affair"
    assert {trial["results"]["kv_cache_bytes_per_token"] for trial in told["trials"]} == {2 * 36 * 8 * 128 * 2}
    assert told["operating_range_rps"] == [0.5 * low, 0.7 * low]
    assert [trial["rate_rps"] for trial in told["trials"]] == sorted(trial["rate_rps"] for trial in told["trials"])
    assert "saturates between" in capsys.readouterr().out
    assert (told["load"]["prompt_tokens_mean"], told["load"]["trial_seconds"]) == (10.0, 1.0)
    page = (tmp_path / "sweep.html").read_text()
    assert page.count("<details>") == len(told["trials"])
    assert "finished, TTFT ≤ 30000 ms" in page
    assert (tmp_path / "sweep.png").read_bytes().startswith(PNG)


def test_a_sweep_sets_its_own_rates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--url", "http://127.0.0.1:9", "--sweep", "--concurrency", "3"]) == 2
    assert "--sweep sets the rates itself" in capsys.readouterr().err
