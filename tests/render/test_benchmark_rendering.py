"""The Job of a benchmark: restricted, without rights, and told by a list of arguments that no shell ever sees."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.api.benchmark_summary import RunFigures, Summary, SweepFigures
from holdfast.api.llmbenchmark import LLMBenchmark, LLMBenchmarkSpec
from holdfast.cli.main import build_parser
from holdfast.enginemodel.catalog import ACCELERATORS, find_accelerator
from holdfast.render.benchmark import config_map, job, job_name, measurand
from holdfast.render.settings import RenderSettings
from holdfast.rendered.declared import run_of
from holdfast.rendered.names import Manifest
from holdfast.tools.bench.runs import checks, loads
from tests.api.benchmark_refusals import RECORDED, benchmark
from tests.render.regenerate import GOLDEN
from tests.render.scenes import FULL, MINIMAL, service

OURS = RenderSettings(pod_files={}, activator_image="registry.example.com/holdfast:0.1.0")


def declared(spec: Any = (), name: str = "sweep") -> LLMBenchmark:
    body = benchmark(spec, name)
    body["metadata"] |= {"namespace": "prod", "uid": "0a1b2c3d-0000-4000-8000-000000000009", "generation": 1}
    return LLMBenchmark.parse(body)


def rendered(spec: Any = (), of: Manifest | None = None) -> Manifest:
    asked = declared(spec)
    by_name = asked.spec.target.service_ref is not None
    found = service(base=of) if of else service()
    return job(asked, measurand(asked, found if by_name else None), OURS)


def container(manifest: Manifest) -> Manifest:
    (only,) = manifest["spec"]["template"]["spec"]["containers"]
    found: Manifest = only
    return found


def golden() -> list[Manifest]:
    """What stands in tests/golden/benchmark.yaml."""
    recorded = {
        "sweep": None,
        "trace": {**RECORDED, "format": "azure", "speed": 2, "start": "1m"},
        "target": {"caSecretRef": {"name": "ca", "key": "ca.crt"}, "api": "Chat", "ignoreEos": False},
        "revision": 2,
        "resources": {"requests": {"cpu": "2"}},
    }
    figures = SweepFigures(objective=0.99, carried_rps=4, attains_rps=3.5, trials=((1.0, None, 1, 120, 0, 0, 50, 0),))
    return [
        rendered(),
        rendered(recorded, FULL),
        config_map(declared(), Summary(run=RunFigures(requests=50), sweep=figures)),
    ]


def test_manifests_equal_the_golden_file() -> None:
    expected = list(yaml.safe_load_all((GOLDEN / "benchmark.yaml").read_text()))
    assert golden() == expected, "if this is meant: python -m tests.render.test_benchmark_rendering, then read the diff"


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"sweep": None, "rate": {"rps": 2.5, "cv": 2}, "duration": "30s"},
        {"sweep": None, "concurrency": 8, "lengths": {"promptTokens": 9, "outputTokens": 3, "cv": 0.5}},
        {"sweep": None, "trace": {**RECORDED, "format": "azure", "start": "30s"}},
        {"sweep": None, "latency": {}, "lengths": {"promptTokens": 9}},
        {"sweep": None, "throughput": {"requests": 20}, "lengths": {"trace": RECORDED}},
        {"lengths": {"trace": {**RECORDED, "format": "mooncake"}}, "revision": "again"},
        {"target": {"serviceRef": None, "url": "http://10.0.0.7:8000/v1", "model": "a b", "api": "Chat"}},
        {"slo": {"ttft": "1s", "tpot": "50ms", "e2e": "20s", "objective": "90%"}, "maxClientLag": "50ms"},
    ],
)
def test_the_command_line_understands_what_it_is_told(spec: dict[str, Any]) -> None:
    arguments = container(rendered(spec))["args"]
    parsed = build_parser(["bench"]).parse_args(arguments)
    checks.check(parsed)
    assert str(parsed.summary) == "/dev/termination-log"
    assert parsed.json == "-"


@pytest.mark.parametrize(
    ("spec", "by_hand", "batches"),
    [
        ({"latency": {}}, ["--latency"], True),
        ({"latency": {"batchSize": 4, "requests": 9}}, ["--latency=4", "--requests=9"], True),
        ({"throughput": {}}, ["--throughput"], False),
        ({"throughput": {"requests": 7}}, ["--throughput", "--requests=7"], False),
    ],
)
def test_an_offline_load_is_that_of_bench_by_hand(spec: dict[str, Any], by_hand: list[str], batches: bool) -> None:
    asked = container(rendered({"sweep": None, **spec}))["args"]
    here, there = (
        loads.load_of(build_parser(["bench"]).parse_args(arguments)).load
        for arguments in (asked, ["bench", "--url=http://chat", *by_hand])
    )
    assert here.batches is there.batches is batches
    assert (here.expected, here.concurrency) == (there.expected, there.concurrency)
    assert next(iter(here.planned)) == next(iter(there.planned))


def test_what_the_service_says_is_asked_for() -> None:
    arguments = container(rendered())["args"]
    assert "--url=http://chat.prod.svc:8000" in arguments
    assert "--model=Qwen/Qwen3-8B" in arguments
    assert "--slo=ttft=500ms,tpot=30ms" in arguments
    assert "--objective=99%" in arguments


ONE: Manifest = {**MINIMAL["spec"]["accelerators"][0]}


@pytest.mark.parametrize(
    ("accelerators", "told"),
    [
        ([ONE], ["--accelerator=h100_sxm"]),
        ([{"name": "pool-a", "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L40S"}}], ["--accelerator=l40s"]),
        ([{"name": "pool-a"}], []),
        ([ONE, {**ONE, "name": "l40s"}], []),
    ],
    ids=["by its label", "by its label, whatever it is called", "not known", "several"],
)
def test_bench_is_told_the_gpu_where_all_replicas_have_the_same_known_one(
    accelerators: list[Manifest], told: list[str]
) -> None:
    spec = {**MINIMAL["spec"], "accelerators": accelerators}
    arguments = container(rendered(of={**MINIMAL, "spec": spec}))["args"]
    assert [each for each in arguments if each.startswith("--accelerator")] == told


def test_of_an_address_no_gpu_is_known() -> None:
    arguments = container(rendered({"target": {"serviceRef": None, "url": "http://10.0.0.7:8000"}}))["args"]
    assert not any(each.startswith(("--accelerator", "--cost-per-hour")) for each in arguments)


def test_bench_knows_every_gpu_of_the_catalog_by_the_name_it_is_told() -> None:
    assert all(find_accelerator(shape.system) == shape for _, shape in ACCELERATORS)


def test_what_the_service_is_made_of_runs_nothing_again() -> None:
    asked = declared()
    others = [service(base=base) for base in (MINIMAL, FULL)]
    assert len({job(asked, measurand(asked, of), OURS)["metadata"]["name"] for of in others}) == 1


def test_the_key_of_the_service_comes_from_its_secret_and_stands_nowhere() -> None:
    found = container(rendered(of=FULL))
    assert found["env"] == [
        {"name": "HOLDFAST_API_KEY", "valueFrom": {"secretKeyRef": {"name": "chat-key", "key": "key"}}}
    ]


def test_a_pod_is_restricted_and_has_no_token() -> None:
    pod = rendered()["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = container(rendered())["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert "command" not in container(rendered())


def test_pods_are_no_replicas_of_the_service() -> None:
    labels = rendered()["spec"]["template"]["metadata"]["labels"]
    assert "holdfast.dev/service" not in labels
    assert labels["holdfast.dev/benchmark"] == "sweep"


def by_the_kubelet(argument: str) -> str:
    """$$ is a dollar, $(NAME) a variable; from left to right, as the kubelet does."""
    return re.sub(r"\$\$|\$\([^)]*\)", lambda found: "$" if found[0] == "$$" else "secret", argument)


@given(
    st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=100)
    | st.text("$()A", min_size=1, max_size=12)
)
@example("$$(HOLDFAST_API_KEY)")
def test_whatever_a_model_is_called_is_one_argument_and_no_variable(name: str) -> None:
    asked = declared({"target": {"model": name}})
    arguments = container(job(asked, measurand(asked, service()), OURS))["args"]
    assert f"--model={name}" in map(by_the_kubelet, arguments)
    assert sum(argument.startswith("--") for argument in arguments) == len(arguments) - 1


@given(st.from_regex(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?", fullmatch=True))
def test_names_and_labels_fit(name: str) -> None:
    manifest = job(declared(name=name), measurand(declared(name=name), service()), OURS)
    assert len(manifest["metadata"]["name"]) <= 63
    assert all(len(value) <= 63 for value in manifest["metadata"]["labels"].values())


def test_a_run_has_another_name_when_anything_of_the_spec_changes_and_only_then() -> None:
    names = {job_name(declared(spec)) for spec in ({}, {"revision": 1}, {"revision": 2}, {"sweep": {"startRps": 2}})}
    assert len(names) == 4
    again = declared()
    edited = again.metadata.model_copy(update={"generation": 3})
    assert job_name(again.model_copy(update={"metadata": edited})) not in names, "its Job of before may be there still"
    assert run_of(declared()) == run_of(declared({"sweep": {"startRps": 1.0}, "timeout": "1h"})), "defaults are told"


def test_a_default_that_a_later_version_adds_runs_nothing_again() -> None:
    class Later(LLMBenchmarkSpec):
        """Of a version to come."""

        shape: str = "Poisson"

    spec = Later.model_validate(benchmark()["spec"])
    assert run_of(declared().model_copy(update={"spec": spec})) == run_of(declared())


if __name__ == "__main__":
    (GOLDEN / "benchmark.yaml").write_text(yaml.safe_dump_all(golden(), sort_keys=False, width=120))
