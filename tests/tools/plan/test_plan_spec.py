"""A plan heeds what the manifest allows and forbids, and a trace as it came."""

from __future__ import annotations

import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from holdfast.cli.main import build_parser, main
from holdfast.cli.plan import HEADS, PRICES, _load
from holdfast.cli.plannotes import notes
from holdfast.tools.bench.runs.manifest import read_service
from holdfast.tools.plan.busiest_minute import read_busiest
from holdfast.tools.plan.prices import with_prices
from holdfast.twin.replica.capacity import lognormal_lengths
from holdfast.twin.scenarios.inputs import BadInput
from holdfast.twin.scenarios.traces import LONGEST_LINE, read_trace

HEADER = "arrival_seconds,prompt_tokens,output_tokens\n"
SMALL = ("--prompt-tokens", "200", "--output-tokens", "20")
FIXED = {"mode": "Fixed", "maxNumSeqs": 256, "maxNumBatchedTokens": 2048}
"""As `batching`: these limits alone are simulated."""


def manifest(folder: Path, accelerator: dict[str, Any] | None = None, **spec: Any) -> Path:
    """A service on H100s at $3, with more in its spec."""
    path = folder / "service.yaml"
    content = {
        "model": {"uri": "meta-llama/Llama-3.1-8B"},
        "slo": {"ttft": "1s", "tpot": "50ms", "objective": "95%"},
        "accelerators": [{"name": "h100", "costPerHour": 3.0, **(accelerator or {})}],
        **spec,
    }
    path.write_text(yaml.safe_dump({"metadata": {"name": "chat"}, "spec": content}))
    return path


def planned(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["plan", "-f", str(path), *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def trace(path: Path, moments: np.ndarray[Any, np.dtype[np.float64]]) -> Path:
    path.write_text(HEADER + "".join(f"{moment:.3f},200,20\n" for moment in np.sort(moments)))
    return path


def test_the_busiest_minute_may_begin_at_any_second(tmp_path: Path) -> None:
    crowd = np.concatenate([np.arange(0.0, 600.0, 2.0), 150.0 + np.arange(0.0, 60.0, 0.1)])
    found = read_busiest(trace(tmp_path / "trace.csv", crowd), "csv", 3600.0)
    assert found.rate_rps == pytest.approx((600 + 30) / 60, rel=0.01)
    assert found.begins_seconds == pytest.approx(150.0, abs=2.0)


@pytest.mark.parametrize(("around_seconds", "sample"), [(200.0, 10_000), (3600.0, 400)])
def test_the_requests_around_the_busiest_minute_are_kept_as_they_came(
    around_seconds: float, sample: int, tmp_path: Path
) -> None:
    crowd = np.concatenate([np.arange(0.0, 4000.0, 2.0), 2000.0 + np.arange(0.0, 50.0, 0.5)])
    recorded = read_busiest(trace(tmp_path / "trace.csv", crowd), "csv", around_seconds, sample).recorded
    assert recorded.at[0] == 0.0
    assert np.all(np.diff(recorded.at) >= 0.0)
    assert len(recorded) <= sample
    assert recorded.at[-1] <= around_seconds
    gaps = np.diff(recorded.at)
    assert (gaps < 1.0).sum() >= 100
    assert (gaps > 1.9).sum() >= 40


@pytest.mark.parametrize("sample", [200, 3_000])
def test_the_busiest_minute_is_kept_whole_however_dense(sample: int, tmp_path: Path) -> None:
    crowd = np.concatenate([np.arange(0.0, 1200.0, 1.0), 600.0 + np.arange(0.0, 50.0, 0.025)])
    found = read_busiest(trace(tmp_path / "trace.csv", crowd), "csv", 3600.0, sample)
    gaps = np.diff(found.recorded.at)
    assert found.rate_rps == pytest.approx(2060 / 60, rel=0.01)
    assert (gaps < 0.03).sum() >= 1990
    assert len(found.recorded) <= max(sample, 2300)


def test_a_trace_that_comes_through_a_pipe_is_read_once(tmp_path: Path) -> None:
    content = trace(tmp_path / "trace.csv", np.arange(0.0, 90.0, 0.5)).read_text()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(pipe.write_text, content)
        found = read_busiest(pipe, "csv", 3600.0)
        written.result(10.0)
    assert found.rate_rps == pytest.approx(2.0)
    assert len(found.recorded) == found.requests == 180


@pytest.mark.slow
def test_bursts_of_a_trace_are_played_as_they_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bursts = np.concatenate([30.0 * number + np.arange(0.0, 0.8, 0.001) for number in range(20)])
    code, found = planned(manifest(tmp_path), capsys, "--trace", str(trace(tmp_path / "bursts.csv", bursts)))
    (offer,) = [each for each in found["offers"] if each["default_batching"]]
    assert code == 0
    assert offer["replicas"] == 1
    assert offer["spread_attainment"] < 0.95


@pytest.mark.slow
def test_fewer_replicas_than_the_spec_keeps_are_not_offered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = planned(manifest(tmp_path, scaling={"min": 4, "max": 6}), capsys, "--rate", "1", *SMALL)
    assert {offer["replicas"] for offer in found["offers"]} == {4}
    assert {offer["cost_per_hour"] for offer in found["offers"]} == {12.0}
    assert {point["replicas"] for point in found["pareto"]} == {4}


@pytest.mark.slow
def test_fixed_batching_is_the_only_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batching = {"mode": "Fixed", "maxNumSeqs": 256, "maxNumBatchedTokens": 8192}
    _, found = planned(manifest(tmp_path, batching=batching), capsys, "--rate", "1", *SMALL)
    assert [offer["limits"]["max_num_batched_tokens"] for offer in found["offers"]] == [8192]
    del batching["mode"]
    _, found = planned(manifest(tmp_path, batching=batching), capsys, "--rate", "1", *SMALL)
    assert len(found["offers"]) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accelerator", "spec", "field"),
    [
        ({}, {"scaling": {"max": 1}}, "scaling.max allows 1"),
        ({"max": 1}, {}, "accelerators[0].max allows 1"),
        ({}, {"budget": {"maxCostPerHour": 5}}, "budget.maxCostPerHour allows 1"),
    ],
)
def test_a_size_that_the_spec_forbids_is_no_answer_and_says_which_field_does(
    accelerator: dict[str, Any], spec: dict[str, Any], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = manifest(tmp_path, accelerator, batching=FIXED, **spec)
    assert main(["plan", "-f", str(path), "--rate", "200", *SMALL]) == 1
    assert f"replicas are needed, but {field}; raise it" in capsys.readouterr().out


def spot_and(regular: str, **of_regular: Any) -> list[dict[str, Any]]:
    spot = {"name": "h100-spot", "spot": True, "costPerHour": 1.0, "nodeSelector": {"pool": "spot"}}
    return [spot, {"name": regular, "costPerHour": 3.0, "nodeSelector": {"pool": "regular"}, **of_regular}]


@pytest.mark.slow
def test_regular_replicas_beside_spot_are_kept_and_priced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"accelerators": spot_and("h100"), "scaling": {"max": 20, "minOnDemand": 2}}
    path = manifest(tmp_path, **spec)
    _, found = planned(path, capsys, "--rate", "1", *SMALL)
    assert {(offer["accelerator"], offer["replicas"], offer["cost_per_hour"]) for offer in found["offers"]} == {
        ("h100-spot", 2, 6.0),
        ("h100", 2, 6.0),
    }
    assert main(["plan", "-f", str(manifest(tmp_path, batching=FIXED, **spec)), "--rate", "1", *SMALL]) == 0
    told = capsys.readouterr().out
    assert "h100-spot: 2 replicas are on h100 (scaling.minOnDemand); the price includes both" in told
    assert "h100: the load alone needs 1, the spec requires 2" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accelerators", "budget", "told"),
    [
        (spot_and("l40s", max=2), {}, "h100-spot: no on-demand accelerator can run scaling.minOnDemand next to it"),
        (spot_and("h100", costPerHour=10.0, max=2), {"maxCostPerHour": 21}, "budget.maxCostPerHour allows 3"),
    ],
)
def test_spot_that_the_spec_forbids_is_no_answer(
    accelerators: list[dict[str, Any]],
    budget: dict[str, Any],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scaling = {"max": 20, "minOnDemand": 2}
    path = manifest(tmp_path, accelerators=accelerators, scaling=scaling, budget=budget, batching=FIXED)
    assert main(["plan", "-f", str(path), "--rate", "600", *SMALL]) == 1
    assert told in capsys.readouterr().out


def test_a_context_that_does_not_fit_the_memory_starts_no_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = manifest(tmp_path, model={"uri": "meta-llama/Llama-3.1-8B", "maxModelLen": 10_000_000})
    assert main(["plan", "-f", str(path), "--rate", "1", *SMALL]) == 1
    assert "vLLM does not start there" in capsys.readouterr().out


@pytest.mark.slow
def test_requests_beyond_the_longest_context_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = manifest(tmp_path, model={"uri": "meta-llama/Llama-3.1-8B", "maxModelLen": 1000})
    words = ("--rate", "1", "--prompt-tokens", "5000", "--output-tokens", "20")
    assert main(["plan", "-f", str(path), *words]) == 1
    assert "longer than model.maxModelLen, 1000 tokens" in capsys.readouterr().out
    _, found = planned(path, capsys, "--rate", "1", "--prompt-tokens", "200", "--output-tokens", "20", "--cv", "0.8")
    (offer,) = [each for each in found["offers"] if each["default_batching"]]
    assert 0.0 < offer["refused_share"] < 0.05
    assert found["pareto"][-1]["attainment"] < 1.0


@pytest.mark.slow
def test_a_trickle_needs_one_replica(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = planned(manifest(tmp_path), capsys, "--rate", "1e-8", *SMALL)
    assert code == 0
    assert {offer["replicas"] for offer in found["offers"]} == {1}


def test_another_kind_of_object_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = manifest(tmp_path)
    path.write_text("kind: Deployment\n" + path.read_text())
    assert main(["plan", "-f", str(path), "--rate", "1", *SMALL]) == 2
    assert "kind 'Deployment'; name a manifest of an LLMService" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "told"), [("", "empty; name"), ("- chat\n", "no mapping; name")])
def test_a_file_without_any_manifest_says_so(
    content: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(content)
    assert main(["plan", "-f", str(path), "--rate", "5"]) == 2
    assert told in capsys.readouterr().err


def test_who_listens_to_nothing_gets_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["rules"]) == 0
    assert not sys.stdout.isatty()
    assert not sys.stderr.isatty()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("csv", HEADER + "0,5,5\n\n1,5,5\n\n"),
        ("mooncake", '{"timestamp": 0, "input_length": 5, "output_length": 5}\n\n' * 2),
    ],
)
def test_empty_lines_of_a_trace_are_passed_over(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    assert len(read_trace(path, name)) == 2


def test_a_line_without_an_end_is_not_read_to_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,5,5\n" + LONGEST_LINE * "0")
    with pytest.raises(BadInput, match=r"trace\.csv:3: the line has 1,000,000 characters"):
        read_trace(path, "csv")


@pytest.mark.parametrize("cv", [0.1, 1.0, 10.0, 100.0])
def test_drawn_lengths_have_the_means_asked_for_however_wide_they_spread(cv: float) -> None:
    found = lognormal_lengths(500.0, 100.0, cv, 1_000_000)
    assert found.prompt_tokens.mean() == pytest.approx(500.0, rel=1e-3)
    assert found.output_tokens.mean() == pytest.approx(100.0, rel=1e-3)


@pytest.mark.slow
def test_a_slice_is_planned_as_a_slice_and_a_shared_gpu_is_said_to_be_a_guess(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = {
        "slice": {"resource": "nvidia.com/mig-1g.10gb", "nodeSelector": {"nvidia.com/gpu.product": "H100-MIG-1g.10gb"}},
        "shared": {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED"}},
        "h100": {},
    }
    path = manifest(
        tmp_path,
        model={"uri": "Qwen/Qwen3-1.7B"},
        accelerators=[{"name": name, **found} for name, found in kinds.items()],
        batching={"mode": "Fixed", "maxNumSeqs": 64, "maxNumBatchedTokens": 2048},
    )
    _, plan = planned(path, capsys, "--rate", "1", "--prompt-tokens", "2000", "--output-tokens", "20")
    source = {offer["accelerator"]: offer["source"] for offer in plan["offers"]}
    carried = {offer["accelerator"]: offer["saturation_rps"] for offer in plan["offers"]}
    assert (source["slice"], source["shared"]) == ("roofline", "unknown")
    assert carried["slice"] < carried["h100"] / 3


LOAD = ("--rate=5", "--prompt-tokens=500", "--output-tokens=100", "--json")
OPTIONS = ("--model=Qwen/Qwen3-8B", "--ttft=500ms", "--tpot=50ms")


def test_a_plan_needs_no_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*OPTIONS, "--accelerator=h100", "--accelerator=l40s:2", "--objective=95%", "--rate=5", *SMALL, "--json"]
    assert main(["plan", *words]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert {offer["accelerator"] for offer in planned["offers"]} == {"h100", "l40s"}
    assert planned["objective"] == 0.95
    assert planned["load"] == "200 prompt and 20 output tokens on average"


@pytest.mark.parametrize(
    ("given", "means", "assumed"),
    [
        ([], (1155.0, 211.0), "; --prompt-tokens and --output-tokens are assumed"),
        (["--output-tokens=100"], (1155.0, 100.0), "; --prompt-tokens is assumed"),
        (["--prompt-tokens=1155", "--output-tokens=211"], (1155.0, 211.0), ""),
    ],
)
def test_lengths_that_are_not_given_are_the_typical_ones_and_named(
    given: list[str], means: tuple[float, float], assumed: str
) -> None:
    load = _load(build_parser(("plan",)).parse_args(["plan", "--rate=5", *given]), 3600.0)
    assert (load.lengths.prompt_tokens.mean(), load.lengths.output_tokens.mean()) == pytest.approx(means, rel=1e-3)
    text = f"{means[0]:g} prompt and {means[1]:g} output tokens on average{assumed}"
    assert load.told.removesuffix(", as in Azure's conversation trace of 2023") == text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--model=Qwen/Qwen3-8B"], "--accelerator, --ttft, --tpot is missing: give -f FILE, or --model"),
        ([], "--model, --accelerator, --ttft, --tpot is missing"),
        (["-f", "chat.yaml", "--ttft=1s"], "--ttft and -f: give one manifest, or no manifest"),
        ([*OPTIONS, "--accelerator=h100:two"], "two is no number of GPUs; write h100:2 for two"),
        ([*OPTIONS, "--accelerator=h100:0"], "these options: invalid LLMService: spec.accelerators[0].count"),
        ([*OPTIONS, "--accelerator=H 100"], "these options: invalid LLMService: spec.accelerators[0].name"),
        (
            ["--model=Qwen/Qwen3-8B", "--ttft=fast", "--tpot=1s", "--accelerator=h100"],
            "invalid LLMService: spec.slo.ttft",
        ),
    ],
)
def test_options_that_make_no_service_are_told_in_one_line(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *options, *LOAD]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_an_invalid_manifest_is_told_by_its_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "chat.yaml"
    file.write_text("kind: LLMService\nmetadata: {name: chat}\nspec: {slo: {ttft: 5}}\n")
    assert main(["plan", "-f", str(file), *LOAD]) == 2
    said = capsys.readouterr().err
    assert "invalid LLMService: spec." in said
    assert "correct these fields" in said


@pytest.mark.parametrize(
    "words", [("plan", *LOAD), ("tune",), ("tune", "--url=http://127.0.0.1:9", "--limits-file=x")], ids=" ".join
)
def test_a_manifest_with_a_target_is_refused_with_what_to_give_instead(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([words[0], "-f", str(Path(__file__).parents[3] / "examples/adopt.yaml"), *words[1:]]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "has a target, and so neither model nor accelerators" in line
    assert "plan: --model and --accelerator" in line


def test_a_name_that_is_only_like_a_known_one_is_told_below_the_table(tmp_path: Path) -> None:
    spec = read_service(manifest(tmp_path, {"name": "h200-foo"}))
    (line,) = (note for note in notes(spec, (), False) if "taken for" in note)
    assert line == (
        "h200-foo: taken for h200_sxm by its name; if it is another GPU, describe it in accelerators[].hardware"
    )


def test_sequences_are_an_axis_of_a_plan_and_more_of_them_carry_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = planned(manifest(tmp_path), capsys, "--rate", "4", *SMALL, "--max-num-seqs", "2,16,16")
    assert code == 0
    few, many = told["offers"]
    assert [offer["limits"]["max_num_seqs"] for offer in (few, many)] == [2, 16]
    assert few["bound_by"] == "Sequences"
    assert few["simulated"]["rate_rps"] < many["simulated"]["rate_rps"]
    assert few["saturation_rps"] < many["saturation_rps"]
    assert not few["default_batching"]


def test_sequences_that_the_spec_has_are_its_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = manifest(tmp_path, batching={"mode": "Fixed", "maxNumSeqs": 16, "maxNumBatchedTokens": 512})
    assert main(["plan", "-f", str(path), "--rate", "4", *SMALL, "--max-num-seqs", "16,2048"]) == 0
    shown = capsys.readouterr().out
    assert " 16, 512* " in shown
    assert " 2048, 512 " in shown
    assert "h100: 2048 sequences are more than 512 tokens per step: vLLM does not start so: lower" in shown
    assert "1 x h100, 16 sequences, 512 tokens/step" in shown


@pytest.mark.parametrize("text", ["", ",", "0", "8,-1", "8,x", "1e3", "9" * 400])
def test_sequences_that_are_no_numbers_are_told_in_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["plan", "-f", str(manifest(tmp_path)), "--rate", "4", *SMALL, f"--max-num-seqs={text}"])
    shown = capsys.readouterr().err
    assert (refused.value.code, shown.count("\n")) == (2, 1)
    assert "give numbers of sequences above 0, such as 8,16,64" in shown


PAIR = ("--accelerator", "h100:2", "--accelerator", "l40s")
PLANNED = ("plan", "--model", "Qwen/Qwen3-8B", *PAIR, "--ttft", "2s", "--tpot", "50ms", "--rate", "4", *SMALL)
FEW = ("--max-num-seqs", "16")
NO_PRICES = ("h100", "h100=", "=3", "h100=0", "h100=-1", "h100=nan", "h100=inf", "h100=1e9", "h100=$3")


def test_a_price_per_gpu_and_hour_gives_dollars_per_hour_and_per_million_tokens(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*PLANNED, *FEW, "--cost", "h100=2.95", "--json"]) == 0
    dear, unknown = json.loads(capsys.readouterr().out)["offers"]
    assert dear["cost_per_hour"] == pytest.approx(2.95 * 2 * dear["replicas"])
    tokens_per_hour = 3600.0 * 4.0 * (200 + 20)
    assert dear["cost_per_million_tokens"] == pytest.approx(1e6 * dear["cost_per_hour"] / tokens_per_hour, rel=0.01)
    assert (unknown["cost_per_hour"], unknown["cost_per_million_tokens"]) == (None, None)


def test_columns_of_prices_are_there_with_a_price_and_left_out_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PLANNED, *FEW]) == 0
    assert "$" not in capsys.readouterr().out
    assert main([*PLANNED, *FEW, "--cost", "h100=2.95", "--plot", str(tmp_path / "plan.html")]) == 0
    shown = capsys.readouterr().out
    assert "$/h  tokens" in shown
    assert "l40s: without a price it is not compared by cost; give --cost l40s=DOLLARS" in shown
    page = (tmp_path / "plan.html").read_text()
    assert page.count("<th>") == len(HEADS) + len(PRICES)
    assert page.count("<td>") == 2 * (len(HEADS) + len(PRICES))


def test_a_price_replaces_the_manifests_and_leaves_others_as_they_are(tmp_path: Path) -> None:
    spec = read_service(manifest(tmp_path))
    assert with_prices(spec, []) == spec
    cheaper = with_prices(spec, ["h100=1.5"])
    assert [option.cost_per_gpu_hour for option in cheaper.accelerators] == [1.5]
    assert [option.cost_per_gpu_hour for option in spec.accelerators] == [3.0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("h100=2", "h100=3"), "--cost h100: given twice"),
        (("b200=9",), "--cost b200: no such accelerator in this plan: give one of h100, l40s"),
        *(((text,), "give dollars per GPU and hour above 0") for text in NO_PRICES),
    ],
)
def test_a_price_that_is_none_is_told_in_one_line(
    given: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PLANNED, *(word for text in given for word in ("--cost", text))]) == 2
    shown = capsys.readouterr().err
    assert told in shown
    assert shown.count("\n") == 1


@pytest.mark.slow
def test_more_replicas_are_no_advice_where_only_idle_ones_keep_the_objectives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The longest of a hundred prompts takes an L40S longer than that, however many of them there are."""
    spec = {
        "model": {"uri": "Qwen/Qwen3-8B"},
        "slo": {"ttft": "220ms", "tpot": "50ms", "objective": "99%"},
        "accelerators": [{"name": "l40s"}, {"name": "h100"}],
        "batching": {"mode": "Fixed", "maxNumSeqs": 64, "maxNumBatchedTokens": 2048},
        "scaling": {"max": 1},
    }
    path = manifest(tmp_path, **spec)
    assert main(["plan", "-f", str(path), "--rate", "2", "--prompt-tokens", "500", "--output-tokens", "100"]) == 0
    shown = capsys.readouterr().out
    found = re.search(
        r"max allows 1; each would be almost idle .*; at 50 % .* it keeps ttft: (\d+)ms, tpot: \d+ms", shown
    )
    assert found, shown
    assert int(found[1]) > 220
    assert "or use h100, which keeps them with 1 replica" in shown
    assert "raise it" not in shown


@pytest.mark.parametrize(
    ("example", "said"),
    [
        (
            "classes",
            "classes are not planned for without --class NAME=20%: all requests have the service's own objectives",
        ),
        (
            "groups",
            "h100x16: planned as if all GPUs were on one node, because the speed of the link between nodes is unknown",
        ),
        ("chat", None),
    ],
)
def test_what_a_plan_leaves_out_of_a_service_is_said(example: str, said: str | None) -> None:
    spec = read_service(Path(__file__).parents[3] / "examples" / f"{example}.yaml")
    left_out = [note for note in notes(spec, (), False) if "planned" in note]
    assert left_out == ([said] if said else [])
