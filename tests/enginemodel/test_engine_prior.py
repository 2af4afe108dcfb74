"""What is believed of an engine by its names."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.service import AcceleratorOption
from holdfast.enginemodel.acceleratornames import taken_for
from holdfast.enginemodel.catalog import find_accelerator, find_model, guess_model
from holdfast.enginemodel.prior import PriorSource, engine_prior, option_prior

PRODUCTS = {
    "NVIDIA-H100-80GB-HBM3": "h100_sxm",
    "NVIDIA-H100-PCIe": "h100_pcie",
    "NVIDIA-H100-NVL": "h100_nvl",
    "NVIDIA-H200": "h200_sxm",
    "NVIDIA-H20": "h20",
    "NVIDIA-B200": "b200_sxm",
    "NVIDIA-A100-SXM4-80GB": "a100_sxm",
    "NVIDIA-A100-SXM4-40GB": "a100_40gb",
    "NVIDIA-L40S": "l40s",
    "NVIDIA-L4": "l4",
    "NVIDIA-A10G": "a10g",
    "Tesla-T4": "t4",
    "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition": "rtx_pro_6000_server",
    "NVIDIA-GeForce-RTX-4090": "rtx4090",
    "NVIDIA-GeForce-RTX-5090": "rtx5090",
}


@pytest.mark.parametrize(("product", "system"), PRODUCTS.items())
def test_a_product_label_names_the_accelerator(product: str, system: str) -> None:
    found = find_accelerator("pool-a", {"nvidia.com/gpu.product": product})
    assert found is not None
    assert found.system == system


def test_the_label_wins_over_the_name() -> None:
    found = find_accelerator("h100", {"nvidia.com/gpu.product": "NVIDIA-L40S"})
    assert found is not None
    assert found.system == "l40s"


def test_a_name_alone_is_enough() -> None:
    assert {name: getattr(find_accelerator(name), "system", None) for name in ("h100", "l4", "a100", "pool")} == {
        "h100": "h100_sxm",
        "l4": "l4",
        "a100": "a100_sxm",
        "pool": None,
    }


@pytest.mark.parametrize(
    ("name", "labels", "system"),
    [
        ("h200-foo", {}, "h200_sxm"),
        ("foo-h100-80gb", {}, "h100_sxm"),
        ("h200-foo", {"nvidia.com/gpu.product": "NVIDIA-H200"}, None),  # the label says it
        ("h200", {}, None),
        ("8xh100", {}, None),
        ("h100-spot", {}, None),
        ("NVIDIA-H100-80GB-HBM3", {}, None),
        ("nvidia-rtx-pro-6000-blackwell-server-edition", {}, None),
        ("h100-mig-3g.40gb", {}, None),
        ("pool-7", {}, None),  # like no known one
        ("", {}, None),
    ],
)
def test_a_name_that_is_only_like_that_of_a_known_accelerator_is_noticed(
    name: str, labels: dict[str, str], system: str | None
) -> None:
    assert getattr(taken_for(name, labels), "system", None) == system


def test_no_product_label_is_only_like_the_name_of_its_accelerator() -> None:
    assert [product for product in PRODUCTS if taken_for(product)] == []


@pytest.mark.parametrize(
    ("uri", "table"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("pvc://models/Qwen3-8B/", "Qwen/Qwen3-8B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Meta-Llama-3.1-70B"),
        ("nvidia/Llama-3.1-70B-Instruct-FP8", "nvidia/Llama-3.1-70B-Instruct-FP8"),
        ("Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B-FP8"),
        ("openai/gpt-oss-20b", "openai/gpt-oss-20b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B"),
    ],
)
def test_a_known_model_leads_to_its_table(uri: str, table: str) -> None:
    model = find_model(uri)
    assert model is not None
    assert model.table == table


@pytest.mark.parametrize(("accelerator", "gpus"), [("h100", 1), ("h100", 2), ("h200", 1), ("h200", 2), ("l40s", 2)])
def test_tables_of_fp8_in_blocks_that_public_runs_refute_are_not_believed(accelerator: str, gpus: int) -> None:
    quantized, usual = (engine_prior(uri, accelerator, tensor=gpus) for uri in ("Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B"))
    assert quantized.source is PriorSource.ROOFLINE
    assert usual.source is PriorSource.TABLE
    alone = [prior.timer.step_seconds((), 1, 512.0) for prior in (quantized, usual)]
    assert alone[0] < 0.7 * alone[1], "half the bytes take about half the time"


def test_quantization_selects_the_quantized_table() -> None:
    model = find_model("Qwen/Qwen3-32B", "fp8")
    assert model is not None
    assert model.table == "Qwen/Qwen3-32B-FP8"


@pytest.mark.parametrize(
    ("uri", "parameters", "active"),
    [
        ("acme/Chat-13B", 13e9, 13e9),
        ("acme/mixer-8x22b-v2", 176e9, 176e9),
        ("acme/moe-100B-A10B", 100e9, 10e9),
        ("acme/small-1.5b-it", 1.5e9, 1.5e9),
        ("acme/moe-100B-A0B", 100e9, 100e9),
        ("acme/moe-100B-A999B", 100e9, 100e9),
    ],
)
def test_parameters_are_read_from_a_name(uri: str, parameters: float, active: float) -> None:
    model = guess_model(uri)
    assert model is not None
    assert model.parameters == pytest.approx(parameters)
    assert model.active_parameters == pytest.approx(active)


@pytest.mark.parametrize(
    "uri", ["/models/tiny", "acme/model-v2", "acme/b-0b", "", f"acme/{'9' * 300}b", "acme/100001b", "acme/999999x8b"]
)
def test_a_name_without_a_size_gives_no_guess(uri: str) -> None:
    assert guess_model(uri) is None


def test_a_table_is_preferred_to_the_roofline() -> None:
    prior = engine_prior("Qwen/Qwen3-8B", "h100", {}, 1)
    assert prior.source is PriorSource.TABLE
    assert prior.gpu is prior.table
    assert 350_000 < prior.kv_tokens < 450_000
    assert (prior.max_num_seqs_default, prior.max_num_batched_tokens_default) == (1024, 8192)


def test_a_size_without_a_table_gets_the_roofline() -> None:
    prior = engine_prior("Qwen/Qwen3-8B", "h100", {}, 4)
    assert prior.source is PriorSource.ROOFLINE
    assert prior.table is None


def test_vllm_defaults_follow_the_memory() -> None:
    def defaults(name: str) -> tuple[int, int]:
        prior = engine_prior("Qwen/Qwen3-8B", name)
        return prior.max_num_seqs_default, prior.max_num_batched_tokens_default

    assert defaults("b200") == (1024, 16_384)
    assert defaults("a100") == (256, 2_048)
    assert defaults("l40s") == (256, 2_048)


def test_weights_that_do_not_fit_leave_no_kv_cache() -> None:
    assert engine_prior("meta-llama/Llama-3.1-70B", "h100", {}, 1).kv_tokens == 0


def test_what_is_unknown_is_guessed_and_said_so() -> None:
    for model, accelerator in (("/models/x", "h100"), ("Qwen/Qwen3-8B", "gpu-pool-7"), ("", "")):
        prior = engine_prior(model, accelerator)
        assert prior.source is PriorSource.UNKNOWN
        assert prior.confidence < engine_prior("Qwen/Qwen3-8B", "h100").confidence
        assert prior.kv_tokens > 0


def test_arguments_of_the_engine_change_the_room_for_tokens() -> None:
    def tokens(**said: Any) -> int:
        return option_prior("Qwen/Qwen3-8B", AcceleratorOption("h100", **said)).kv_tokens

    assert tokens(memory_utilization=0.5) < tokens() / 2
    assert tokens(kv_cache_dtype="fp8") == pytest.approx(2 * tokens(), rel=0.01)
    assert tokens(quantization="fp8") > 1.05 * tokens()
    assert tokens(kv_cache_dtype="auto") == tokens(kv_cache_dtype="something-new") == tokens()


def test_an_accelerator_overrides_the_quantization_of_its_service() -> None:
    option = AcceleratorOption("h200", quantization="fp8")
    assert option_prior("Qwen/Qwen3-32B", option, "awq") == option_prior(
        "Qwen/Qwen3-32B-FP8", AcceleratorOption("h200")
    )


def test_a_share_that_is_asked_about_comes_before_the_arguments() -> None:
    option = AcceleratorOption("h100", memory_utilization=0.5)
    asked = option_prior("Qwen/Qwen3-8B", option, None, 0.92)
    assert asked.kv_tokens == option_prior("Qwen/Qwen3-8B", AcceleratorOption("h100")).kv_tokens


@given(
    st.text(max_size=40), st.text(max_size=20), st.dictionaries(st.text(), st.text(), max_size=2), st.integers(-1, 16)
)
def test_no_name_makes_a_prior_fail(model: str, accelerator: str, labels: dict[str, str], gpus: int) -> None:
    prior = engine_prior(model, accelerator, labels, gpus)
    assert all(math.isfinite(value) and value >= 0 for value in (prior.law.c0, prior.law.c1, prior.law.c4))
    assert prior.law.c0 > 0
    assert prior.kv_tokens >= 0
