"""`holdfast plan` and the capacity that it simulates."""

from __future__ import annotations

import json
import math
import re
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.main import main
from holdfast.cli.plan import _front_line
from holdfast.cli.plannotes import _spread, notes
from holdfast.domain.service import Slo
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.phases import Roofs
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.steadystate import Engine
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.observe.objects.spec import to_spec
from holdfast.tools.plan.busiest_minute import read_busiest
from holdfast.tools.plan.picture import headline, spots
from holdfast.tools.plan.plan import _in_parallel, _least, _roofline
from holdfast.tools.plan.rows import Offer, Point, pareto
from holdfast.tools.reports.frontier import cheapest, front
from holdfast.twin.arrays.fleet import EngineSpec, Workload
from holdfast.twin.replica import capacity
from holdfast.twin.replica import saturation as saturations
from holdfast.twin.replica.capacity import (
    Bench,
    Horizon,
    LengthPairs,
    SimulatedRate,
    crossing,
    lognormal_lengths,
    played,
)
from holdfast.twin.replica.saturation import saturation
from tests.control.parts import llmservice

SLO = Slo(1.0, 0.05, 0.95, 3600.0)
KIND = EngineSpec(StepLaw(0.008, 4e-5, 2e-4, 4e-8, 4e-9), SchedulerLimits(64, 2048, 60_000))
LENGTHS = LengthPairs(np.full(10, 600), np.full(10, 100))


FIXED = {"batching": {"mode": "Fixed", "maxNumSeqs": 1024, "maxNumBatchedTokens": 8192}}
"""In a spec: an H100's default limits alone are simulated. Without it they are the first offer of several."""


def _manifest(
    folder: Path,
    tpot: str = "50ms",
    name: str = "h100",
    ttft: str = "1s",
    uri: str = "meta-llama/Llama-3.1-8B",
    **more: Any,
) -> Path:
    path = folder / "service.yaml"
    spec = {
        "model": {"uri": uri},
        "slo": {"ttft": ttft, "tpot": tpot, "objective": "95%"},
        "accelerators": [{"name": name, "costPerHour": 3.0}],
        **more,
    }
    path.write_text(yaml.safe_dump({"metadata": {"name": "chat"}, "spec": spec}))
    return path


def test_the_simulated_rate_is_where_the_objective_just_holds() -> None:
    bench = Bench(KIND, SLO, LENGTHS, draws=3)
    found = bench.rate(5.0)
    assert found.error_rps < 0.05 * found.rate_rps
    assert bench.attainment(0.9 * found.rate_rps) >= 0.95
    assert bench.attainment(1.15 * found.rate_rps) < 0.95


@pytest.mark.parametrize("guess", [0.3, 30.0])
def test_a_bad_guess_finds_the_same_rate(guess: float) -> None:
    bench = Bench(KIND, SLO, LENGTHS, draws=2)
    assert bench.rate(guess).rate_rps == pytest.approx(bench.rate(6.0).rate_rps, rel=0.12)  # one run is not monotonous


def test_a_plan_plays_few_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[int] = []

    def counting(kind: EngineSpec, slo: Slo, load: Workload, *more: Any) -> Any:
        requests.append(len(load))
        return played(kind, slo, load, *more)

    for module in (capacity, saturations):
        monkeypatch.setattr(module, "played", counting)
    assert main(["plan", "-f", str(_manifest(tmp_path, **FIXED)), "--rate", "20", "--json"]) == 0
    assert len(requests) <= 20
    assert sum(requests) <= 500_000


def test_of_limits_that_carry_nearly_the_same_the_default_and_the_best_of_the_others_are_planned_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = str(_manifest(tmp_path, tpot="30ms", ttft="500ms", uri="Qwen/Qwen3-8B"))
    assert main(["plan", "-f", manifest, "--rate", "20", "--json"]) == 0
    offers = json.loads(capsys.readouterr().out)["offers"]
    assert [each["limits"]["max_num_batched_tokens"] for each in offers] == [8192, 2048]


@given(st.floats(0.5, 2.0), st.floats(3.0, 100.0), st.sampled_from([0.01, 0.05]), st.floats(0.5, 2.0), st.booleans())
def test_where_misses_reach_the_budget_is_found_in_few_trials(
    wanted: float, steepness: float, budget: float, off: float, jumps: bool
) -> None:
    asked: list[float] = []

    def misses(rate: float) -> float:
        asked.append(rate)
        grown = math.exp(min(steepness * math.log(rate / wanted), 10.0))
        return float(rate > wanted) if jumps else min(1.0, budget * grown)

    found, _ = crossing(misses, budget, off * wanted, 10.0)
    assert found == pytest.approx(wanted, rel=0.011)
    assert len(asked) <= 24


@pytest.mark.parametrize("off", [0.3, 0.7, 1.4])
def test_a_trial_without_a_miss_is_not_taken_for_one_at_a_tiny_budget(off: float) -> None:
    found, _ = crossing(lambda rate: 0.0 if rate <= 1.5 else 0.001, 1e-4, off * 1.5, 10.0)
    assert found == pytest.approx(1.5, rel=0.011)


def test_misses_that_no_rate_avoids_leave_no_rate_and_none_leave_the_bound() -> None:
    assert crossing(lambda rate: 1.0, 0.01, 5.0, 20.0)[0] == 0.0
    assert 19.8 <= crossing(lambda rate: 0.0, 0.01, 5.0, 20.0)[0] <= 20.0


@pytest.mark.parametrize(("budget", "trials"), [(0.05, 1), (0.01, 1), (0.001, 2)])
def test_a_rate_four_percent_off_is_tried_again_only_where_few_misses_tell(budget: float, trials: int) -> None:
    tried: list[float] = []

    def misses(rate: float) -> float:
        tried.append(rate)
        return budget * rate**12.0

    found, _ = crossing(misses, budget, 1.04, 10.0, 12.0)
    assert found == pytest.approx(1.0)
    assert len(tried) == trials


def test_behind_a_plain_service_many_replicas_keep_less_than_alone_and_more_of_them_more() -> None:
    bench = Bench(KIND, SLO, LENGTHS, draws=2)
    rate = 9.0 * bench.rate(5.0).rate_rps
    alone = bench.attainment(rate / 10)
    assert bench.spread_attainment(rate, 10) < alone
    assert bench.spread_attainment(rate, 10) < bench.spread_attainment(rate, 16)


def test_what_cannot_be_met_at_all_has_no_rate() -> None:
    assert Bench(KIND, replace(SLO, tpot_seconds=0.001), LENGTHS, draws=1).rate(1.0).rate_rps == 0.0


def test_a_rate_that_only_short_trials_keep_is_not_carried() -> None:
    many = EngineSpec(StepLaw(0.006, 1.5e-5, 4e-5, 3e-8, 1e-9), SchedulerLimits(1024, 8192, 500_000))
    slo, lengths = Slo(5.0, 0.1, 0.95, 3600.0), LengthPairs(np.full(10, 500), np.full(10, 1000))
    full = saturation(many, lengths)
    hours = Horizon(4 * 3600.0, 100_000, 0.0)
    short, carried = Bench(many, slo, lengths, 2).rate(full.rate_rps), 0.0
    carried = Bench(many, slo, lengths, 2, full.horizon).rate_below(full.rate_rps, 0.9 * full.rate_rps).rate_rps
    assert carried <= full.rate_rps < short.rate_rps
    assert Bench(many, slo, lengths, 1, hours).attainment(carried) >= 0.95
    assert Bench(many, slo, lengths, 1, hours).attainment(short.rate_rps) < 0.5


def test_an_endless_queue_leaves_a_replica_at_the_rate_beyond_which_queues_grow() -> None:
    found = saturation(KIND, LENGTHS)
    loose = replace(SLO, ttft_seconds=30.0, tpot_seconds=10.0)
    bench = Bench(KIND, loose, LENGTHS, 2, found.horizon)
    assert bench.attainment(0.98 * found.rate_rps) > 0.99
    assert bench.attainment(1.03 * found.rate_rps) < 0.6


def test_requests_that_an_engine_refuses_are_bad_in_its_trials_and_leave_the_others_feasible() -> None:
    tenth = LengthPairs(np.full(20, 600), np.array([100] * 18 + [60_000] * 2))
    bench = Bench(KIND, replace(SLO, objective=0.8), tenth, 2)
    assert bench.attainment(0.5) == pytest.approx(0.9, abs=0.02)
    assert max(bench.feasible(0.5)) < 60.0


def test_lognormal_lengths_have_the_means_asked_for() -> None:
    lengths = lognormal_lengths(1000.0, 200.0, 1.0, 1_000_000)
    assert lengths.prompt_tokens.mean() == pytest.approx(1000.0, rel=0.03)
    assert lengths.output_tokens.mean() == pytest.approx(200.0, rel=0.03)
    assert lengths.prompt_tokens.min() >= 1


def test_a_plan_says_replicas_and_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "-f", str(_manifest(tmp_path)), "--rate", "90", "--prompt-tokens", "500", "--output-tokens", "50"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    offer = told["offers"][0]
    assert offer["replicas"] >= 2
    assert offer["cost_per_hour"] == pytest.approx(3.0 * offer["replicas"])
    assert offer["simulated"]["rate_rps"] * offer["replicas"] >= 90.0 > offer["simulated"]["rate_rps"]
    assert offer["simulated"]["rate_rps"] < offer["saturation_rps"]
    assert offer["spread_replicas"] >= offer["replicas"]
    assert (offer["spread_attainment"] >= 0.95) == (offer["spread_replicas"] == offer["replicas"])
    shares = [point["attainment"] for point in told["pareto"]]
    assert shares == sorted(shares)
    sizes = [point["replicas"] for point in offer["front"]]
    assert sizes[0] <= offer["replicas"] <= sizes[-1]
    assert sizes[0] * offer["saturation_rps"] >= 90.0
    assert 0.5 * sizes[-1] * offer["saturation_rps"] >= 90.0
    assert 0.7 * offer["safe_replicas"] * offer["saturation_rps"] >= 90.0
    assert offer["tokens_per_dollar"] == pytest.approx(1e6 / offer["cost_per_million_tokens"])


def test_a_replica_of_several_engines_carries_as_much_as_they_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "-f", str(_manifest(tmp_path)), "--rate", "90", "--prompt-tokens", "500", "--output-tokens", "50"]
    offers = []
    for ways in ({}, {"parallelism": {"data": 2}}):
        body = yaml.safe_load(_manifest(tmp_path, **FIXED).read_text())
        body["spec"]["accelerators"][0].update(ways)
        (tmp_path / "service.yaml").write_text(yaml.safe_dump(body))
        assert main([*words, "--json"]) == 0
        offers.append(json.loads(capsys.readouterr().out)["offers"][0])
    alone, double = offers
    assert double["saturation_rps"] == pytest.approx(2.0 * alone["saturation_rps"])
    assert double["simulated"]["rate_rps"] == pytest.approx(2.0 * alone["simulated"]["rate_rps"], rel=0.05)
    assert double["replicas"] == math.ceil(alone["replicas"] / 2)
    assert double["front"][0]["gpus"] == 2 * double["front"][0]["replicas"]


def _planned(
    folder: Path, capsys: pytest.CaptureFixture[str], *words: str, tpot: str = "50ms", **more: Any
) -> list[dict[str, Any]]:
    main(["plan", "-f", str(_manifest(folder, tpot, **more)), *words, "--json"])
    offers: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["offers"]
    return offers


@pytest.mark.parametrize("rate", ["30", "300", "3000"])
def test_the_recommended_size_attains_the_objective_in_its_own_front(
    rate: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = ["--prompt-tokens", "500", "--output-tokens", "50"]
    for offer in _planned(tmp_path, capsys, "--rate", rate, *lengths, tpot="20ms"):
        shares = {point["replicas"]: point["attainment"] for point in offer["front"]}
        assert shares[offer["replicas"]] >= 0.95


def test_objectives_do_not_move_saturation_but_where_a_replica_is_best_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--rate", "30", "--prompt-tokens", "500", "--output-tokens", "50")
    loose, tight = (_planned(tmp_path, capsys, *words, tpot=tpot, **FIXED)[0] for tpot in ("100ms", "10ms"))
    assert tight["saturation_rps"] == loose["saturation_rps"]
    assert loose["operating_range_rps"] == pytest.approx([share * loose["saturation_rps"] for share in (0.5, 0.7)])
    assert tight["operating_range_rps"][1] == tight["simulated"]["rate_rps"] < loose["operating_range_rps"][0]
    assert tight["safe_replicas"] == tight["replicas"]


def _too_long(folder: Path, every: int) -> str:
    outputs = [2_000_000 if number % every == 0 else 30 for number in range(600)]
    path = folder / "long.csv"
    path.write_text(HEADER + "".join(f"{0.1 * at:.1f},300,{output}\n" for at, output in enumerate(outputs)))
    return str(path)


def test_requests_that_do_not_fit_the_memory_are_bad_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "-f", str(_manifest(tmp_path, **FIXED)), "--trace", _too_long(tmp_path, 50)]
    assert main(words) == 0
    assert (
        "h100: 2 % of these requests need more KV cache than the engine has; they are rejected and count as bad"
        in capsys.readouterr().out
    )
    assert main([*words, "--json"]) == 0
    offer = json.loads(capsys.readouterr().out)["offers"][0]
    assert max(point["attainment"] for point in offer["front"]) == pytest.approx(0.98, abs=0.005)
    served = 10.0 * 0.98 * 330 * 3600.0
    assert offer["cost_per_million_tokens"] == pytest.approx(1e6 * offer["cost_per_hour"] / served, rel=0.01)


def test_an_objective_above_the_share_that_fits_the_memory_is_met_by_no_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "-f", str(_manifest(tmp_path)), "--trace", _too_long(tmp_path, 10)]) == 1
    assert "10 % of these requests take more, so that it refuses them: give a replica more" in capsys.readouterr().out


@given(least=st.integers(1, 50), first=st.integers(1, 400), more=st.integers(0, 400))
def test_the_least_size_that_holds_is_found_or_none(least: int, first: int, more: int) -> None:
    most, asked = least + more, []

    def holds(size: int) -> bool:
        asked.append(size)
        return size >= first

    assert _least(holds, least, most) == (max(first, least) if first <= most else None)
    assert all(least <= size <= most for size in asked)


def test_who_gives_up_on_a_plan_does_not_wait_for_what_is_still_simulated() -> None:
    given_up, ended = threading.Event(), []

    def endless() -> None:
        ended.append(given_up.wait(60.0))

    def fails() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        _in_parallel([fails, endless], lambda share: None)
    assert not ended
    given_up.set()


def test_a_plan_from_a_trace_is_for_its_busiest_minute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{0.5 * number:.1f},300,30" for number in range(120)] + [f"{60 + 0.1 * n:.1f},300,30" for n in range(300)]
    (tmp_path / "trace.csv").write_text("\n".join(["arrival_seconds,prompt_tokens,output_tokens", *rows]))
    assert main(["plan", "-f", str(_manifest(tmp_path, **FIXED)), "--trace", str(tmp_path / "trace.csv")]) == 0
    # Half a minute of each: 60 and 300 requests.
    assert "6 req/s of meta-llama/Llama-3.1-8B" in capsys.readouterr().out


@pytest.mark.slow
def test_an_impossible_objective_is_told_with_what_would_be_possible(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _manifest(tmp_path, tpot="1ms", **FIXED)
    assert main(["plan", "-f", str(path), "--rate", "1", "--prompt-tokens", "500", "--output-tokens", "50"]) == 1
    told = next(line for line in capsys.readouterr().out.splitlines() if "cannot be met" in line)
    possible = re.search(r"possible for 95 % of these requests: ttft: (\d+)ms, tpot: ([\d.]+)ms$", told)
    assert possible
    kept = _manifest(tmp_path, tpot=f"{possible[2]}ms", ttft=f"{possible[1]}ms", **FIXED)
    words = ["plan", "-f", str(kept), "--rate", "0.01", "--prompt-tokens", "500", "--output-tokens", "50"]
    assert main(words) == 0


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = str(_manifest(tmp_path))
    for words in (
        ["-f", good, "--rate", "5", "--prompt-tokens", "1000001"],
        ["-f", str(tmp_path / "none.yaml"), "--rate", "5", "--prompt-tokens", "5", "--output-tokens", "5"],
        ["-f", good, "--trace", str(tmp_path / "none.csv")],
    ):
        assert main(["plan", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 20_000, "no valid YAML: "),
        ("metadata: {name: chat}\nspec: &spec {model: *spec}\n", "invalid LLMService: spec.model"),
    ],
    ids=["deep", "alias"],
)
def test_a_manifest_without_an_end_is_told_in_one_line(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "endless.yaml"
    path.write_text(text)
    assert main(["plan", "-f", str(path), "--rate", "5", "--prompt-tokens", "5", "--output-tokens", "5"]) == 2
    said = capsys.readouterr().err
    assert f"{path}: {told}" in said
    assert said.count("\n") == 1


def test_a_trace_that_is_not_there_is_told_with_a_remedy_that_plan_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for trace in (tmp_path / "none.csv", tmp_path):
        assert main(["plan", "-f", str(_manifest(tmp_path)), "--trace", str(trace)]) == 2
        told = "the file does not exist or cannot be read: check the path"
        assert capsys.readouterr().err == f"holdfast plan: --trace {trace}: {told}\n"


HEADER = "arrival_seconds,prompt_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "empty"),
        (HEADER, "the trace has no requests"),
        ("arrival_seconds,prompt_tokens\n1,2\n", ":1: no column 'output_tokens'"),
        (HEADER + "-1,5,5\n", ":2: arrival_seconds -1 is negative"),
        (HEADER + "1,5,5\n0.5,5,5\n", ":3: time goes back"),
        (HEADER + "1,0,5\n", ":2: 0 prompt and 5 output tokens"),
        (HEADER + "1,5,0\n", ":2: 5 prompt and 0 output tokens"),
    ],
)
def test_a_bad_trace_is_told_by_the_plan_in_one_line(
    content: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace.csv").write_text(content)
    assert main(["plan", "-f", str(_manifest(tmp_path)), "--trace", str(tmp_path / "trace.csv")]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


def test_a_broken_mooncake_trace_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    words = ["plan", "-f", str(_manifest(tmp_path)), "--trace", str(path), "--format", "mooncake"]
    negative = b'{"timestamp": -1, "input_length": 3, "output_length": 2}\n'
    for content in (b"\xff\xfe\x00\n", negative, b"{}\n", b"[" * 100_000):
        path.write_bytes(content)
        assert main(words) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_lengths_beside_a_trace_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "-f", str(_manifest(tmp_path)), "--trace", "trace.csv", "--prompt-tokens", "500"]
    assert main(words) == 2
    assert "belong to --rate" in capsys.readouterr().err


def _lines(path: Path, count: int) -> Path:
    path.write_text(HEADER + "".join(f"{0.25 * number},{300 + number % 7},30\n" for number in range(count)))
    return path


def test_a_long_trace_takes_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    peaks = []
    for count in (2_000, 12_000):
        path = _lines(tmp_path / f"{count}.csv", count)
        tracemalloc.start()
        busiest = read_busiest(path, "csv", 3600.0, sample=500)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert busiest.requests == count
        assert busiest.rate_rps == pytest.approx(4.0)
        assert len(busiest.prompt_tokens) == len(busiest.output_tokens) == 500
        assert busiest.prompt_tokens.mean() == pytest.approx(303.0, rel=0.01)
    assert peaks[1] < 1.2 * peaks[0]


def test_a_trace_far_apart_in_time_takes_no_memory_for_the_minutes_between(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,5,5\n900000000000000,5,5\n900000000000001,5,5\n")
    found = read_busiest(path, "csv", 3600.0)
    assert found.rate_rps == pytest.approx(2 / 60)


def test_a_trace_shorter_than_a_minute_is_planned_for_its_own_rate(tmp_path: Path) -> None:
    found = read_busiest(_lines(tmp_path / "trace.csv", 41), "csv", 3600.0)
    assert found.rate_rps == pytest.approx(4.1)


def test_a_single_request_has_no_rate_to_plan_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, trace = _manifest(tmp_path), _lines(tmp_path / "trace.csv", 1)
    assert main(["plan", "-f", str(manifest), "--trace", str(trace)]) == 2
    assert f"{trace}: a single request has no rate: give a longer trace, or --rate\n" in capsys.readouterr().err


def test_a_model_that_does_not_fit_is_told_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _manifest(tmp_path, name="l40s", uri="meta-llama/Llama-3.1-70B-Instruct")
    assert main(["plan", "-f", str(path), "--rate", "1", "--prompt-tokens", "500", "--output-tokens", "50"]) == 1
    assert "room for 0 tokens of KV cache" in capsys.readouterr().out


@pytest.mark.slow
def test_the_picture_is_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "-f", str(_manifest(tmp_path)), "--rate", "30", "--prompt-tokens", "500", "--output-tokens", "50"]
    assert main([*words, "--plot", str(tmp_path / "plan.html")]) == 0
    written = (tmp_path / "plan.html").read_text()
    assert "data:image/png;base64," in written
    assert 'src="http' not in written
    assert "M tokens" in written
    assert main([*words, "--plot", str(tmp_path / "none" / "plan.png")]) == 2
    assert "the folder does not exist: create it first" in capsys.readouterr().err


@pytest.mark.slow
def test_an_impossible_plan_has_a_picture_too(tmp_path: Path) -> None:
    path = _manifest(tmp_path, tpot="1ms")
    words = ["plan", "-f", str(path), "--rate", "1", "--prompt-tokens", "500", "--output-tokens", "50"]
    assert main([*words, "--plot", str(tmp_path / "plan.png")]) == 1
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_another_kind_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "-f", str(_manifest(tmp_path)), "--rate", "30", "--prompt-tokens", "500", "--output-tokens", "50"]
    with pytest.raises(SystemExit) as refused:
        main([*words, "--plot", "plan.gif"])
    assert refused.value.code == 2
    assert "give a file name that ends with .html or .png" in capsys.readouterr().err


def test_a_size_too_small_behind_a_plain_service_is_told_with_one_that_is_not() -> None:
    offer = replace(_offer("a"), replicas=9, spread_attainment=0.931, spread_replicas=11)
    assert not offer.spread_holds
    assert _spread(offer, False).endswith("unevenly: 93.10 % good with 9; the objective needs 11")
    assert _spread(replace(offer, spread_replicas=None), False).endswith(
        "twice as many replicas miss the objective too"
    )
    assert replace(offer, spread_replicas=9).spread_holds
    assert replace(offer, spread_attainment=None, spread_replicas=None).spread_holds


def test_a_fleet_too_large_to_be_played_is_sized_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--rate", "100000", "--prompt-tokens", "500", "--output-tokens", "50", "--json"]
    # The spec allows ten.
    assert main(["plan", "-f", str(_manifest(tmp_path, **FIXED)), *words]) == 1
    offer = json.loads(capsys.readouterr().out)["offers"][0]
    assert offer["replicas"] > 100
    assert offer["most_replicas"] == 10
    assert offer["spread_attainment"] is None


def _offer(name: str, *front: Point) -> Offer:
    return Offer(
        name, True, BatchLimits(256, 2048), "table", 1.0, SimulatedRate(1.0, 0.1), "TPOT", True, 2.0, front=front
    )


def test_the_notes_say_for_each_accelerator_what_binds_prompts_and_what_binds_answers() -> None:
    known = replace(_offer("h100"), roofline={"prefill": Roofs(True, 0.62, 0.16), "decode": Roofs(False, 0.031, 0.776)})
    other = replace(known, default_batching=False, limits=BatchLimits(64, 2048))
    spec = to_spec(llmservice(slo={"ttft": "1s", "tpot": "50ms", "objective": "95%"}))
    (line,) = (note for note in notes(spec, [other, known, _offer("guessed")], False) if "prefill" in note)
    assert line == (
        "h100, 256 sequences, 2048 tokens/step: prefill compute-bound (62 % of FLOP/s, 16 % of bandwidth); "
        "decode memory-bound (3.1 % of FLOP/s, 77.6 % of bandwidth)"
    )


MIX = LengthMix(500.0, 500.0, 100.0, 250_000.0, 125_000.0, 50_000.0, 10_000.0)


def test_a_gpu_or_a_model_that_is_guessed_has_no_roofs() -> None:
    engine = Engine(StepLaw(0.01, 1e-5, 1e-4, 1e-8, 0.0), MIX, 64, 2048, 1e5)
    spec = to_spec(llmservice())
    option = spec.accelerators[0]
    assert set(_roofline(spec, option, engine, 1.0)) == {"prefill", "decode"}
    assert _roofline(replace(spec, model_uri="acme/unheard-of"), option, engine, 1.0) == {}
    assert _roofline(spec, replace(option, name="abacus", node_selector=()), engine, 1.0) == {}
    assert set(_roofline(spec, option, engine, 1e9)) == {"prefill", "decode"}, "an engine that is full decodes the most"


def test_the_front_leaves_out_what_something_cheaper_reaches() -> None:
    first = _offer("a", Point(1, 1, 0.5, 1.0), Point(2, 2, 0.9, 2.0), Point(4, 4, 0.95, 4.0))
    other = _offer("b", Point(1, 1, 0.4, 1.5), Point(2, 2, 0.97, 3.0))
    chosen = [(offer.accelerator, point.replicas) for offer, point in pareto([first, other])]
    assert chosen == [("a", 1), ("a", 2), ("b", 2)]


@pytest.mark.parametrize(("gpus", "price"), [(1, "1 GPU  "), (2, "2 GPUs  ")])
def test_one_gpu_is_named_in_the_singular(gpus: int, price: str) -> None:
    point = Point(1, gpus, 0.99, None)
    assert _front_line(_offer("h100", point), point).startswith(price)


def test_without_any_price_the_front_is_over_gpus_and_with_one_what_has_none_is_left_out() -> None:
    free = _offer("a", Point(1, 4, 0.9, None), Point(2, 8, 0.99, None))
    assert [point.gpus for _, point in pareto([free])] == [4, 8]
    paid = _offer("b", Point(1, 1, 0.5, 2.0))
    assert [offer.accelerator for offer, _ in pareto([free, paid])] == ["b"]


def test_sizes_share_their_tokens_among_gpus_and_those_of_unknown_speed_are_left_out() -> None:
    sized = Point(2, 4, 0.99, 3.6, 50.0, 1000.0)
    unknown = [replace(sized, user_tokens_per_second=math.nan), Point(1, 2, 0.5, 1.8)]
    (spot,) = spots([replace(_offer("a", sized, *unknown), replicas=2)], 0.99)
    assert (spot.choice, spot.load, spot.user_tokens_per_second) == ("a", "2", 50.0)
    assert spot.gpu_tokens_per_second == 250.0
    assert spot.dollars_per_million == pytest.approx(1.0)
    assert spots([replace(_offer("a", sized), replicas=None)], 0.99) == []


def test_a_size_that_misses_the_objective_is_not_among_what_nothing_beats() -> None:
    cheap, enough = Point(1, 1, 0.5, 1.8, 50.0, 900.0), Point(2, 2, 0.99, 3.6, 50.0, 1000.0)
    found = spots([replace(_offer("a", cheap, enough), replicas=2)], 0.99)
    assert [(spot.load, spot.missed) for spot in found] == [("1", True), ("2", False)]
    assert [spot.load for spot in front(found)] == [spot.load for spot in cheapest(found)] == ["2"]


def test_the_picture_of_a_plan_names_the_cheapest_size_that_attains_the_objective() -> None:
    dear = _offer("b", Point(2, 2, 0.999, 3.0))
    found = [_offer("a", Point(1, 1, 0.5, 1.0), Point(2, 2, 0.96, 2.0)), dear]
    spec = to_spec(llmservice(slo={"ttft": "1s", "tpot": "50ms", "objective": "95%"}))
    stricter = replace(spec, slo=replace(spec.slo, objective=0.9995))
    assert headline(spec, 25.0, found) == (
        f"{spec.model_uri} at 25 req/s: 2 × a, $2.00/h gives 96 % good, objective 95 %",
        True,
    )
    told, holds = headline(stricter, 25.0, found)
    assert told.endswith("no size here gives 99.95 % good")
    assert not holds
    assert headline(spec, 25.0, []) == (f"{spec.model_uri} at 25 req/s: no size here gives 95 % good", False)
