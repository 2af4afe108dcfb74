"""The command line of the engine."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.render import Objectives
from holdfast.render.container import resources
from holdfast.rendered.buckets import E2E_SECONDS, TPOT_SECONDS, TTFT_SECONDS, custom_histogram_buckets
from holdfast.rendered.declared import inputs, revision
from holdfast.rendered.model import locate_model
from holdfast.rendered.prior import declared_engine
from tests.render.scenes import ADAPTERS, chat_h100, context, engine, service

SECONDS = st.floats(min_value=1e-3, max_value=86_400.0)


def arguments(changes: dict[str, Any], **facts: Any) -> list[str]:
    found: list[str] = engine(chat_h100(service(changes), context(**facts)))["args"]
    return found


def test_the_model_comes_first_and_the_users_arguments_last() -> None:
    args = arguments(
        {"engine": {"args": ["--enforce-eager"]}, "accelerators": [{"name": "h100", "args": ["--seed=1"]}]}
    )
    assert args[:2] == ["serve", "Qwen/Qwen3-8B"]
    assert args[-2:] == ["--enforce-eager", "--seed=1"]


def test_a_flag_of_the_user_stands_alone() -> None:
    for own in (["--max-num-queued-tokens=7"], ["--max_num_queued_tokens", "7"]):
        args = arguments({"engine": {"args": own}}, admission_tokens=5600)
        assert [item for item in args if "queued" in item] == own[:1]


def test_middleware_of_the_user_comes_beside_ours() -> None:
    args = arguments({"engine": {"args": ["--middleware=mine.Logger"]}})
    assert [item for item in args if item.startswith("--middleware")] == [
        "--middleware=holdfast_middleware.ReadyAndBalance",
        "--middleware=mine.Logger",
    ]


def test_one_gpu_is_no_tensor_parallelism() -> None:
    assert not [item for item in arguments({}) if "tensor" in item]
    wide = arguments({"accelerators": [{"name": "h100", "count": 8}]})
    assert "--tensor-parallel-size=8" in wide


def test_each_way_of_sharing_has_its_flag_and_none_where_it_is_one() -> None:
    shared = arguments({"accelerators": [{"name": "h100", "parallelism": {"pipeline": 2, "data": 3}}]})
    assert [item for item in shared if "parallel" in item] == ["--pipeline-parallel-size=2", "--data-parallel-size=3"]


def test_a_replica_asks_for_all_its_gpus_and_a_declared_count_changes_no_pod() -> None:
    ways = {"name": "h100", "parallelism": {"tensor": 4, "data": 2}}
    left_out, given = (service({"accelerators": [each]}) for each in (ways, {**ways, "count": 8}))
    (accelerator,) = left_out.spec.accelerators
    assert resources(left_out.spec, accelerator)["limits"] == {"nvidia.com/gpu": 8}
    assert inputs(left_out, accelerator) == inputs(given, given.spec.accelerators[0])


def test_an_emulated_engine_requests_no_accelerator() -> None:
    requests = {"cpu": "50m"}
    emulated = service(
        {"accelerators": [{"name": "l40s", "resource": "None"}], "engine": {"resources": {"requests": requests}}}
    )
    assert resources(emulated.spec, emulated.spec.accelerators[0]) == {"requests": requests}


def test_a_fraction_of_a_second_rounds_the_shutdown_timeout_up() -> None:
    assert "--shutdown-timeout=2" in arguments({"engine": {"shutdownTimeout": "1500ms"}})


@pytest.mark.parametrize(
    ("written", "rendered"),
    [("$(VLLM_API_KEY)", "$$(VLLM_API_KEY)"), ("$$(VLLM_API_KEY)", "$$$$(VLLM_API_KEY)"), ("a$$b", "a$$$$b")],
)
def test_variables_in_values_are_not_expanded_by_the_kubelet(written: str, rendered: str) -> None:
    assert f"--served-model-name={rendered}" in arguments({"model": {"servedName": written}})


HOSTILE = "x'; rm -rf / #\n$(reboot) `reboot` \\ \"--api-key"


@pytest.mark.parametrize("field", ["servedName", "revision", "dtype", "quantization"])
def test_no_field_reaches_a_shell(field: str) -> None:
    container = engine(chat_h100(service({"model": {field: HOSTILE}, "engine": {"args": [f"--x={HOSTILE}"]}})))
    carrying = [item for item in container["args"] if "reboot" in item]
    assert len(carrying) == 2, "each in one item of its own"
    for command in (container["command"], container["lifecycle"]["preStop"]["exec"]["command"]):
        assert command[0] == "python3"
        assert not [item for item in command if item in ("sh", "bash", "-c") or "reboot" in item]


@pytest.mark.parametrize(
    ("uri", "argument", "source"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", None),
        ("/models/in/image", "/models/in/image", None),
        ("pvc://weights", "/models", "persistentVolumeClaim"),
        ("pvc://weights/a/b", "/models/a/b", "persistentVolumeClaim"),
        ("pvc://weights/../../etc/passwd", "/models/etc/passwd", "persistentVolumeClaim"),
        ("pvc://weights//a/", "/models/a", "persistentVolumeClaim"),
        ("oci://registry/model:1", "/models", "image"),
    ],
)
def test_each_form_of_uri_has_its_place(uri: str, argument: str, source: str | None) -> None:
    location = locate_model(uri)
    assert location.argument == argument
    assert (set(location.volume) - {"name"} if location.volume else set()) == ({source} if source else set())


def test_an_adapter_without_a_volume_leaves_the_model_its_own() -> None:
    adapters = {"adapters": [{"name": "sql", "uri": "/adapters/sql"}]}
    pod = chat_h100(service({"model": {"uri": "pvc://weights/base", "lora": adapters}}))["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["volumes"] if "persistentVolumeClaim" in each] == ["model"]
    assert "/models" in [each["mountPath"] for each in pod["containers"][0]["volumeMounts"]]


def test_a_claim_of_model_adapters_and_cache_is_one_volume() -> None:
    shared = {"uri": "pvc://weights/base", "cache": {"pvc": "weights"}}
    adapters = {
        "adapters": [{"name": "sql", "uri": "pvc://weights/sql"}, {"name": "mail", "uri": "pvc://weights/mail"}]
    }
    pod = chat_h100(service({"model": {**shared, "lora": adapters}}))["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["volumes"] if "persistentVolumeClaim" in each] == ["cache"]
    mounts = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "cache"}
    assert {path: each.get("readOnly", False) for path, each in mounts.items()} == {
        "/cache": False,
        "/models": True,
        "/adapters/weights": True,
    }


def test_adapters_are_listed_behind_one_flag_and_mounted_read_only() -> None:
    manifest = chat_h100(service(ADAPTERS))
    args, mounts = engine(manifest)["args"], engine(manifest)["volumeMounts"]
    at = args.index("--lora-modules")
    assert [json.loads(each) for each in args[at + 1 : at + 5]] == [
        {"name": "sql", "path": "/adapters/adapters/team/sql"},
        {"name": "mail", "path": "/adapters/adapters/$$(mail)"},
        {"name": "chat-de", "path": "org/chat-de@0123456789012345678901234567890123456789"},
        {"name": "legal", "path": "/adapters-in-image/legal"},
    ]
    assert args[at + 5].startswith("--")
    assert {"--enable-lora", "--max-loras=2", "--max-lora-rank=32", "--max-cpu-loras=4"} < set(args)
    (mount,) = [each for each in mounts if each["name"].startswith("adapters-")]
    assert (mount["mountPath"], mount["readOnly"]) == ("/adapters/adapters", True)
    (volume,) = [each for each in manifest["spec"]["template"]["spec"]["volumes"] if each["name"] == mount["name"]]
    assert volume["persistentVolumeClaim"] == {"claimName": "adapters", "readOnly": True}


def test_all_adapters_have_room_unless_fewer_are_asked_for() -> None:
    args = arguments({"model": {"lora": {"adapters": ADAPTERS["model"]["lora"]["adapters"]}}})
    assert {"--max-loras=4", "--max-lora-rank=16"} < set(args)
    assert not [each for each in args if "cpu-loras" in each]


def test_adapters_change_what_is_known_of_a_replica_only_by_the_room_they_take() -> None:
    room, named = (
        {"model": {"lora": {"maxLoaded": 1, "adapters": [{"name": name, "uri": "/a"}]}}} for name in ("a", "b")
    )
    (plain, one, another), (accelerator,) = map(service, ({}, room, named)), service().spec.accelerators
    assert revision(one, accelerator) == revision(another, accelerator) != revision(plain, accelerator)


def test_the_estimate_of_memory_knows_the_room_for_adapters() -> None:
    of = [service(), service(ADAPTERS), service({"model": {"lora": {"adapters": [{"name": "a", "uri": "/a"}]}}})]
    assert [declared_engine(each.spec, each.spec.accelerators[0]).adapter_ranks for each in of] == [0, 2 * 32, 16]


def test_another_list_of_adapters_replaces_pods_and_their_objectives_do_not() -> None:
    first, slo = {"name": "a", "uri": "/a"}, {"slo": {"ttft": "1s"}}
    lists = ([first], [{**first, **slo}], [first, {"name": "b", "uri": "/b"}], [{"name": "a", "uri": "/c"}])
    of = [service({"model": {"lora": {"adapters": adapters}}}) for adapters in lists]
    found = [inputs(each, each.spec.accelerators[0]) for each in of]
    assert found[0] == found[1]
    assert len({*found, inputs(service(), service().spec.accelerators[0])}) == 4


def test_mounted_models_are_served_under_their_uri() -> None:
    assert "--served-model-name=pvc://weights/a" in arguments({"model": {"uri": "pvc://weights/a"}})


@given(ttft=SECONDS, tpot=SECONDS, e2e=st.none() | SECONDS)
def test_bucket_edges_ascend_and_hold_the_objectives(ttft: float, tpot: float, e2e: float | None) -> None:
    families = json.loads(custom_histogram_buckets(Objectives(ttft, tpot, e2e)))
    expected = {"time_to_first_token": ttft, "inter_token_latency": tpot, "request_latency": e2e}
    assert families.keys() == expected.keys()
    for family, edges in families.items():
        assert all(low < high for low, high in itertools.pairwise(edges))
        assert expected[family] is None or expected[family] in edges


def test_edges_cost_no_more_series_than_twice_vllms_own() -> None:
    own = {"time_to_first_token": 22, "inter_token_latency": 19, "request_latency": 21}
    assert len(TTFT_SECONDS) + 2 * len(TPOT_SECONDS) + 5 * len(E2E_SECONDS) < 2 * (
        own["time_to_first_token"] + 2 * own["inter_token_latency"] + 5 * own["request_latency"]
    )
