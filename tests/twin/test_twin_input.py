"""Bad scenarios and traces: one line that says where, what, and the remedy."""

from __future__ import annotations

import gzip
import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from holdfast.cli.main import main
from holdfast.cli.simulate import data_folder
from holdfast.twin.scenarios.inputs import BadInput
from holdfast.twin.scenarios.scenario import Scenario, WorkloadFile
from holdfast.twin.scenarios.traces import read_trace
from holdfast.twin.scenarios.workload import make_workload, renewals
from tests.twin.twin_builders import scenario_file, small_scenario

HEADER = "arrival_seconds,prompt_tokens,output_tokens\n"


def _edited(place: str, value: object) -> dict[str, Any]:
    """A good scenario with one value set, or removed where it is None; places are dotted."""
    content = small_scenario()
    *path, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    inner: Any = content
    for part in path:
        inner = inner[part]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return content


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        ("services", None, "services: is required"),
        ("colour", "red", "colour: unknown field"),
        ("services.0.spec.slo.ttft", "fast", "services[0].spec.slo.ttft: must be a duration"),
        ("services.0.workload.arrivals.poisson.0.rps", -1, "services[0].workload.arrivals.poisson[0].rps"),
        ("services.0.workload.arrivals.poisson.0.rps", True, "poisson[0].rps: true is not a number: give one"),
        ("services.0.workload.lengths.fixed.outputTokens", True, "outputTokens: true is not a number"),
        ("services.0.initialReplicas.h100", False, "initialReplicas.h100: false is not a number"),
        ("cluster.accelerators.h100.gpus", True, "cluster.accelerators.h100.gpus: true is not a number"),
        ("cluster.accelerators.h100.coldStartJitter", False, "coldStartJitter: false is not a number"),
        (
            "services.0.workload.arrivals.poisson.0.at",
            "3s",
            "services[0].workload.arrivals: the first step must be at 0s",
        ),
        ("services.0.spec.accelerators.0.parallelism", {"data": 2}, "remove parallelism.pipeline and parallelism.data"),
        ("services.0.workload.lengths", None, "services[0].workload: lengths are missing"),
        ("services.0.workload.lengths.fixed.outputTokens", 0, "lengths.fixed.outputTokens"),
        ("services.0.initialReplicas", {"b200": 1}, "services[0]: no accelerator 'b200'"),
        ("services.0.kvTokens", {"b200": 1}, "services[0]: no accelerator 'b200'"),
        ("services.0.kvTokens", {"h100": 0}, "kvTokens.h100"),
        ("cluster.router", "magic", "cluster.router"),
        ("cluster.accelerators.h100.gpus", 0, "cluster.accelerators.h100.gpus"),
        ("cluster.accelerators.h100.system", "abacus", "cluster.accelerators.h100.system: no step table"),
        ("cluster.accelerators.h100.system", "abacus", "take another system: a100_sxm, b200_sxm, h100_sxm, h200_sxm"),
        ("services.0.spec.model.uri", "some/Thing-9B", "take another model: Qwen/Qwen3-30B-A3B, "),
        ("services.0.spec.accelerators.0.count", 7, "7 x h100_sxm: take another count: 1, 2"),
        ("services.0.spec.slo.tpot", "2ms", "spec.slo.tpot of 2 ms is impossible: a step of an empty engine takes"),
        ("services.0.spec.slo.ttft", "2ms", "spec.slo.ttft of 2 ms is impossible"),
        ("duration", "0s", "duration: duration must be above 0s"),
        ("duration", "NaN", "duration: 'NaN' is not a duration"),
        ("warmup", "9h", "warmup: warmup must be shorter"),
        ("faults", [{"at": "1s", "kind": "node-loss", "service": "none"}], "faults[0].service: no service 'none'"),
        ("faults", [{"at": "1s", "kind": "spot-reclaim"}], "faults[0].accelerator: accelerator is the one whose nodes"),
        ("faults", [{"at": "1s", "kind": "node-loss", "accelerator": "h100"}], "give it for spot-reclaim only"),
        (
            "faults",
            [{"at": "3m", "kind": "node-loss"}],
            "faults[0].at: 3m is not before the end of duration: give less",
        ),
        ("faults", [{"at": "1s", "kind": "node-loss"}, {"at": "9h", "kind": "metrics-gone"}], "faults[1].at: 9h is"),
        ("faults", [{"at": "1s", "kind": "metrics-gone", "for": "0s"}], "faults[0].for: a fault of 0s has no effect"),
        ("faults", [{"at": "1s", "kind": "metrics-gone", "for": 0}], "faults[0].for: a fault of 0s has no effect"),
        ("faults", [{"at": "1s", "kind": "spot-reclaim", "accelerator": "x"}], "faults[0].accelerator: no accelerator"),
    ],
)
def test_a_bad_scenario_is_refused_with_the_place_of_its_fault(
    place: str, value: object, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scenario_file(tmp_path, _edited(place, value))
    assert main(["simulate", str(path)]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("text", ["", "[]", "a: [", "\x00", "name: a\nname: b", pytest.param("[" * 20_000, id="deep")])
def test_what_is_no_scenario_at_all_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"scenario\.yaml: not"):
        Scenario.read(path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "empty"),
        (HEADER, "the trace has no requests"),
        ("arrival_seconds,prompt_tokens\n1,2\n", ":1: no column 'output_tokens'"),
        (HEADER + "0,5,5\n-1,5,5\n", ":3: arrival_seconds -1 is negative"),
        (HEADER + "1,5,5\n0.5,5,5\n", ":3: time goes back"),
        (HEADER + "1,0,5\n", ":2: 0 prompt and 5 output tokens"),
        (HEADER + "1,5,10000001\n", ":2: 5 prompt and 10000001 output tokens: each must be from 1 to 10,000,000"),
        (HEADER + "1,5,2.5\n", ":2: 2.5 tokens: give whole numbers"),
        (HEADER + "1,5,nan\n", ":2: 'nan' is not a number"),
        (HEADER + "inf,5,5\n", ":2: 'inf' is not a number"),
        (HEADER + "1,5\n", ":2: fewer columns"),
        (HEADER + "1,5,x\n", ":2: 'x' is not a number"),
    ],
)
def test_a_bad_trace_is_refused_with_file_and_line(content: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content)
    with pytest.raises(BadInput) as refused:
        read_trace(path, "csv")
    assert told in str(refused.value)
    assert "trace.csv" in str(refused.value)


def test_a_trace_from_a_spreadsheet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("\ufeff" + HEADER + "0,5,7\n", encoding="utf-8")
    assert read_trace(path, "csv").output_tokens.tolist() == [7]


def test_a_fault_of_the_only_service_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        Scenario.read(scenario_file(tmp_path, _edited("services.0.spec.slo.ttft", "fast")))
    assert ";" not in str(refused.value)


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read_trace(tmp_path / "none.csv", "csv")
    broken = tmp_path / "broken.csv.gz"
    broken.write_bytes(b"nothing compressed")
    with pytest.raises(BadInput, match="not a text file"):
        read_trace(broken, "csv")


def test_every_format_is_read_from_its_first_request_on(tmp_path: Path) -> None:
    azure, mooncake = tmp_path / "azure.csv", tmp_path / "mooncake.jsonl.gz"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:48.1805900,9,1\n"
    )
    with gzip.open(mooncake, "wt") as file:
        file.write('{"timestamp": 500, "input_length": 3, "output_length": 2, "hash_ids": [1]}\n')
    assert read_trace(azure, "azure").at.tolist() == pytest.approx([0.0, 1.5])
    assert read_trace(mooncake, "mooncake").prompt_tokens.tolist() == [3]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2023-11-16 18:15:46+00:00", "2023-11-16 18:15:46.6805900+00:00"),
        ("2023-11-16T18:15:46Z", "2023-11-16 19:15:46.68059+01:00"),
        ("2023-11-16 18:15:46", "2023-11-16 18:15:46.680590+00:00"),
        ("0001-01-01 00:00:00+14:00", "0001-01-01 00:00:00.68059+14:00"),
    ],
)
def test_times_with_and_without_an_offset_are_of_one_clock(first: str, second: str, tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{first},374,44\n{second},9,1\n")
    assert read_trace(path, "azure").at.tolist() == pytest.approx([0.0, 0.68059])


def test_the_same_seed_draws_the_same_requests() -> None:
    given = WorkloadFile.model_validate(small_scenario()["services"][0]["workload"])
    first, again, other = (make_workload(given, 600.0, Path(), seed) for seed in (1, 1, 2))
    assert first.at.tobytes() == again.at.tobytes() != other.at.tobytes()


def test_steps_and_ramps_bring_as_many_requests_as_their_rates_say() -> None:
    workload = small_scenario()["services"][0]["workload"]
    workload["arrivals"] = {"poisson": [{"at": "0s", "rps": 0}, {"at": "100s", "rps": 50}, {"at": "200s", "rps": 0}]}
    steps = make_workload(WorkloadFile.model_validate(workload), 400.0, Path(), 1)
    assert len(steps) == pytest.approx(5000, rel=0.06)
    assert 100.0 <= steps.at.min() < steps.at.max() <= 200.0
    workload["arrivals"]["ramp"] = True
    ramp = make_workload(WorkloadFile.model_validate(workload), 400.0, Path(), 1)
    assert len(ramp) == pytest.approx(5000, rel=0.06)
    assert np.median(ramp.at) == pytest.approx(100.0, abs=3.0)


@pytest.mark.parametrize("cv", [0.3, 1.0, 4.0])
def test_gaps_vary_as_asked(cv: float) -> None:
    at = renewals(np.array([0.0, 2e4]), np.array([0.0, 2e5]), cv, np.random.default_rng(0))
    gaps = np.diff(at)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)
    assert len(at) == pytest.approx(2e5, rel=0.03)


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5])
def test_a_scale_multiplies_requests_and_keeps_their_time_axis(scale: float, tmp_path: Path) -> None:
    rows = "".join(f"{0.1 * number:.1f},{1 + number % 50},{1 + number % 7}\n" for number in range(3000))
    (tmp_path / "trace.csv").write_text(HEADER + rows)
    trace = {"path": "trace.csv", "format": "csv", "scale": scale}
    found = make_workload(WorkloadFile.model_validate({"arrivals": {"trace": trace}}), 300.0, tmp_path, 1)
    assert len(found) == pytest.approx(3000 * scale, rel=0.05)
    assert (np.diff(found.at) >= 0.0).all()
    assert found.at.max() <= 300.0


def test_a_trace_shorter_than_the_run_begins_again(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(HEADER + "0,5,5\n1,6,6\n")
    trace = {"path": "trace.csv", "format": "csv"}
    found = make_workload(WorkloadFile.model_validate({"arrivals": {"trace": trace}}), 9.0, tmp_path, 1)
    assert found.at.tolist() == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5])
def test_a_trace_longer_than_the_run_does_not_begin_again(scale: float, tmp_path: Path) -> None:
    early, late = "".join(f"{0.01 * number:.2f},1,1\n" for number in range(1000)), "299,2,2\n310,3,3\n"
    (tmp_path / "trace.csv").write_text(HEADER + early + late)
    trace = {"path": "trace.csv", "format": "csv", "scale": scale}
    given = WorkloadFile.model_validate({"arrivals": {"trace": trace}})
    for seed in range(1, 6):
        found = make_workload(given, 300.0, tmp_path, seed)
        assert (found.at > 30.0).sum() <= 3
        assert found.at.max() < 300.0


def test_nothing_is_read_behind_what_the_run_needs(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,5,5\n1,6,6\n10,7,7\n11,8,8\n" + "never read\n" * 1000)
    trace = {"path": "trace.csv", "format": "csv"}
    found = make_workload(WorkloadFile.model_validate({"arrivals": {"trace": trace}}), 10.0, tmp_path, 1)
    assert found.prompt_tokens.tolist() == [5, 6]
    with pytest.raises(BadInput, match="fewer columns"):
        make_workload(WorkloadFile.model_validate({"arrivals": {"trace": trace}}), 12.0, tmp_path, 1)


def test_a_short_run_of_a_long_trace_takes_the_memory_of_a_short_trace(tmp_path: Path) -> None:
    peaks = []
    for count in (2_000, 20_000):
        (tmp_path / "trace.csv").write_text(HEADER + "".join(f"{0.1 * number:.1f},5,5\n" for number in range(count)))
        trace = {"path": "trace.csv", "format": "csv", "scale": 2.0}
        tracemalloc.start()
        make_workload(WorkloadFile.model_validate({"arrivals": {"trace": trace}}), 100.0, tmp_path, 1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_more_requests_than_a_run_takes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(HEADER + "".join(f"{number},5,5\n" for number in range(30)))
    trace = {"path": "trace.csv", "format": "csv", "scale": 1e6}
    with pytest.raises(BadInput, match="a run takes at most"):
        make_workload(WorkloadFile.model_validate({"arrivals": {"trace": trace}}), 60.0, tmp_path, 1)


def test_a_service_without_requests_is_told_with_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = small_scenario()
    content["services"][0]["workload"]["arrivals"] = {"poisson": [{"at": "0s", "rps": 0}]}
    path = scenario_file(tmp_path, content)
    assert main(["simulate", str(path), "--policy", "static:1"]) == 2
    assert f"{path}: services chat: no request arrives" in capsys.readouterr().err


def test_a_service_with_a_target_is_told_what_to_give_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = small_scenario()
    content["services"][0]["spec"] = {"target": {"name": "my-vllm"}, "slo": {"ttft": "1s", "tpot": "80ms"}}
    path = scenario_file(tmp_path, content)
    assert main(["simulate", str(path), "--policy", "static:1"]) == 2
    assert "services chat: has a target" in capsys.readouterr().err


def test_the_shipped_scenarios_are_good() -> None:
    for path in sorted((Path(__file__).parents[2] / "examples" / "scenarios").glob("*.yaml")):
        scenario = Scenario.read(path)
        for entry in scenario.services:
            assert len(make_workload(entry.workload, scenario.duration, path.parent, 1)) > 0


def test_a_policy_or_a_knob_that_does_not_exist_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(scenario_file(tmp_path, small_scenario()))
    for words, told in (
        (["--policy", "magic"], "'magic' is no policy: take one of all, holdfast, "),
        (["--policy", "magic"], ", static-peak, oracle"),
        (["--policy", "static:0"], "static needs a size"),
        (["--policy", "static:²"], "static needs a size"),
        (["--policy", f"static:{'9' * 5000}"], "static needs a size"),
        (
            ["--policy", "static:7"],
            "static:7: the GPUs of cluster.accelerators.h100 hold 6 replicas of chat: use static:6",
        ),
        (["--policy", "hpa", "--knob", "waiting=0"], "must be a positive number"),
        (["--policy", "hpa", "--knob", "colour=3"], "these policies have waiting"),
        (["--policy", "holdfast-slow", "--knob", "waiting=3"], "no knobs"),
        (["--policy", "forecast-hourly", "--knob", "util=-1"], "must be a positive number"),
        (["--policy", "dynamo-load:3"], "only static takes a number"),
    ):
        assert main(["simulate", path, *words]) == 2
        assert told in capsys.readouterr().err


def test_a_replica_that_no_node_holds_has_no_static_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = small_scenario()
    content["services"][0]["spec"]["accelerators"][0]["count"] = 8
    assert main(["simulate", str(scenario_file(tmp_path, content)), "--policy", "static:1"]) == 2
    assert capsys.readouterr().err.endswith("h100 hold 0 replicas of chat: raise its gpus\n")


@pytest.mark.parametrize("seeds", ["²", "0", "-1", "1.5", "", "x", "1001", "9" * 5000])
def test_seeds_that_are_no_whole_number_are_refused(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["simulate", "scenario.yaml", f"--seeds={seeds}"])
    assert refused.value.code == 2
    assert f"{seeds!r}: give a whole number from 1 to 1000" in capsys.readouterr().err


def test_a_report_that_is_no_page_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("report.txt", "report.png", "report"):
        with pytest.raises(SystemExit) as refused:
            main(["simulate", "scenario.yaml", "--plot", name])
        assert refused.value.code == 2
        assert f"argument --plot/--html: {name!r}: give a file name that ends with .html" in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "name"), [("--json", "out.json"), ("--plot", "page.html")])
def test_results_that_could_not_be_written_are_refused_before_anything_runs(
    flag: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("holdfast.cli.simulate.simulate")
    path = str(scenario_file(tmp_path, small_scenario()))
    for place, told in (
        (tmp_path / "none" / name, "the folder does not exist: create it first"),
        (tmp_path, "is a folder"),
    ):
        assert main(["simulate", path, flag, str(place)]) == 2
        said = capsys.readouterr().err
        assert f"{flag} {place}: {told}" in said
        assert said.count("\n") == 1


@pytest.mark.slow
def test_requests_that_no_engine_can_hold_are_told_before_they_spoil_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = small_scenario()
    told = tmp_path / "told.json"
    assert main(["simulate", str(scenario_file(tmp_path, content)), "--seeds", "1", "--json", str(told)]) == 0
    assert "KV cache" not in capsys.readouterr().err
    content["services"][0]["workload"]["lengths"]["fixed"]["promptTokens"] = 5_000_000
    assert main(["simulate", str(scenario_file(tmp_path, content)), "--seeds", "1", "--json", str(told)]) == 0
    (service,) = json.loads(told.read_text())["runs"][0]["services"].values()
    assert service["rejected"] == service["arrivals"] > 0
    found = re.findall(r"service chat: (\d+) of (\d+) requests .* on h100 holds \(\d+\)", capsys.readouterr().err)
    assert len(found) == 1
    assert found[0][0] == found[0][1]


@pytest.mark.slow
def test_a_fault_of_a_replica_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = small_scenario()
    content["faults"] = [
        {"at": "40s", "kind": "replica-slow", "replica": 1},
        {"at": "60s", "kind": "replica-slow", "replica": 99, "for": "10s"},
        {"at": "1s", "kind": "metrics-gone", "replica": 99},
    ]
    words = ["simulate", str(scenario_file(tmp_path, content)), "--seeds", "2", "--policy", "static:2"]
    assert main(words) == 0
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("holdfast simulate: faults[1].replica: 99: chat had 2 ready replicas at 1m under static:2")
    assert said.endswith("another one was hit; give a number below 2")


def test_paths_start_from_the_data_folder_that_was_named_else_from_the_environments(tmp_path: Path) -> None:
    scenario, shared = tmp_path / "scenario.yaml", tmp_path / "shared"
    shared.mkdir()
    (shared / "trace.csv").touch()
    environment = {"HOLDFAST_DATA": str(shared)}
    assert data_folder(tmp_path / "named", scenario, ["trace.csv"], environment) == tmp_path / "named"
    assert data_folder(None, scenario, ["trace.csv"], environment) == shared
    assert data_folder(None, scenario, ["trace.csv", "other.csv"], environment) == tmp_path
    assert data_folder(None, scenario, ["trace.csv"], {"HOLDFAST_DATA": ""}) == tmp_path


def test_a_scenario_names_its_files() -> None:
    content = small_scenario()
    rates, trace = {"path": "r.csv", "format": "servegen", "peakRps": 3}, {"path": "t.csv", "format": "csv"}
    content["services"][0]["workload"] = {"arrivals": {"rates": rates}, "lengths": {"trace": trace}}
    content["services"].append({**small_scenario()["services"][0], "name": "code"})
    content["services"][1]["workload"] = {"arrivals": {"trace": trace | {"path": "u.csv"}}}
    assert sorted(Scenario.model_validate(content).files) == ["r.csv", "t.csv", "u.csv"]


def test_yaml_of_the_builder_is_what_the_contract_says(tmp_path: Path) -> None:
    path = scenario_file(tmp_path, small_scenario())
    assert yaml.safe_load(path.read_text())["services"][0]["workload"]["arrivals"]["poisson"]
