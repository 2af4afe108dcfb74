"""What labels, resources and names say about accelerators."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.service import AcceleratorOption, Hardware
from holdfast.enginemodel.catalog import ACCELERATORS, GIB, find_accelerator
from holdfast.enginemodel.memory import EngineMemory
from holdfast.enginemodel.prior import MEMORY_UTILIZATION, PriorSource, engine_prior, option_prior
from holdfast.enginemodel.shapes import AcceleratorShape

PRODUCT = "nvidia.com/gpu.product"


def system(name: str, labels: dict[str, str] | None = None, resource: str = "nvidia.com/gpu") -> str | None:
    found = find_accelerator(name, labels, resource)
    return None if found is None else found.system


def known(name: str, resource: str = "nvidia.com/gpu") -> AcceleratorShape:
    found = find_accelerator(name, None, resource)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("product", "expected"),
    [
        ("NVIDIA-H100-64GB", None),
        ("NVIDIA-A100-SXM-64GB", None),
        ("NVIDIA-A800-40GB", None),
        ("NVIDIA-H100-80GB-HBM3", "h100_sxm"),
        ("NVIDIA-A100-SXM4-80GB", "a100_sxm"),
        ("NVIDIA-A100-PCIE-40GB", "a100_40gb"),
        ("NVIDIA-L40S-48GB", "l40s"),
        ("NVIDIA-GH200-480GB", "gh200"),
        ("Tesla-V100-SXM2-32GB", "v100_32gb"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "a100_sxm-mig-1g.10gb"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "a100_40gb-mig-1g.5gb"),
    ],
)
def test_a_variant_with_another_memory_is_unknown_and_not_taken_for_its_sister(
    product: str, expected: str | None
) -> None:
    assert system("pool", {PRODUCT: product}) == expected


def test_every_row_is_found_by_its_own_name() -> None:
    assert [shape.system for _, shape in ACCELERATORS if find_accelerator(shape.system) != shape] == []


@pytest.mark.parametrize(
    ("label", "value", "found"),
    [
        (PRODUCT, "NVIDIA-RTX-6000-Ada-Generation", "rtx_6000_ada"),
        (PRODUCT, "NVIDIA-RTX-A6000", "a6000"),
        (PRODUCT, "NVIDIA-A40", "a40"),
        (PRODUCT, "NVIDIA-A30", "a30"),
        (PRODUCT, "NVIDIA-L20", "l20"),
        (PRODUCT, "NVIDIA-GeForce-RTX-3090", "rtx3090"),
        (PRODUCT, "NVIDIA-GH200-480GB", "gh200"),
        (PRODUCT, "Tesla-V100-SXM2-16GB", "v100"),
        (PRODUCT, "Tesla-V100-SXM2-32GB", "v100_32gb"),
        ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM", "mi300x"),
        ("amd.com/gpu.product-name", "AMD_Instinct_MI355X_OAM", "mi355x"),
        ("cloud.google.com/gke-tpu-accelerator", "tpu-v5-lite-podslice", "tpu_v5e"),
        ("cloud.google.com/gke-tpu-accelerator", "tpu-v6e-slice", "tpu_v6e"),
        ("cloud.google.com/gke-accelerator", "nvidia-tesla-a100", "a100_40gb"),
        ("cloud.google.com/gke-accelerator", "nvidia-a100-80gb", "a100_sxm"),
        ("cloud.google.com/gke-accelerator", "nvidia-h100-mega-80gb", "h100_sxm"),
        ("karpenter.k8s.aws/instance-accelerator-name", "trainium2", "trainium2"),
    ],
)
def test_a_label_names_the_accelerator(label: str, value: str, found: str) -> None:
    assert system("pool", {label: value}) == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("mi325x", "mi325x"),
        ("mi350x-spot", "mi350x"),
        ("gaudi2", "gaudi2"),
        ("gaudi-3", "gaudi3"),
        ("v6e", "tpu_v6e"),
        ("trn1", "trainium1"),
        ("h100x8", "h100_sxm"),
        ("8xh100", "h100_sxm"),
        ("h100-us-east-1a", "h100_sxm"),
    ],
)
def test_a_name_is_enough(name: str, found: str) -> None:
    assert system(name) == found


@pytest.mark.parametrize("name", ["gpu-pool-7", "oh100s", "ah20", "rtx-4000", "b2000", "xl40", "", "quadro-rtx-6000"])
def test_a_name_that_only_contains_another_is_unknown(name: str) -> None:
    assert system(name) is None


@pytest.mark.parametrize(
    ("product", "gib", "bandwidth_share", "compute_share"),
    [
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", 9.95, 1 / 8, 1 / 7),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.20gb", 19.9, 2 / 8, 1 / 7),
        ("NVIDIA-H100-80GB-HBM3-MIG-3g.40gb", 39.8, 4 / 8, 3 / 7),
        ("NVIDIA-H100-80GB-HBM3-MIG-7g.80gb", 79.6, 1.0, 1.0),
    ],
)
def test_a_mig_profile_is_a_fraction_of_its_gpu(
    product: str, gib: float, bandwidth_share: float, compute_share: float
) -> None:
    found, whole = find_accelerator("pool", {PRODUCT: product}), known("h100")
    assert found is not None
    assert found.memory_bytes / GIB == pytest.approx(gib)
    assert found.bandwidth / whole.bandwidth == pytest.approx(bandwidth_share)
    assert found.peak_flops / whole.peak_flops == pytest.approx(compute_share)


@pytest.mark.parametrize(
    ("name", "labels", "resource", "found"),
    [
        ("h100", {}, "nvidia.com/mig-3g.40gb", "h100_sxm-mig-3g.40gb"),
        ("h100-mig-1g.10gb", {}, "nvidia.com/gpu", "h100_sxm-mig-1g.10gb"),
        ("h100-mig-1g-10gb", {}, "nvidia.com/gpu", "h100_sxm-mig-1g.10gb"),
        ("a100", {}, "nvidia.com/mig-1g.5gb", "a100_40gb-mig-1g.5gb"),
        ("a30", {}, "nvidia.com/mig-2g.12gb", "a30-mig-2g.12gb"),
        ("h200", {}, "nvidia.com/mig-1g.18gb", "h200_sxm-mig-1g.18gb"),
        ("b200", {}, "nvidia.com/mig-1g.23gb", "b200_sxm-mig-1g.23gb"),
        ("h100", {"nvidia.com/mig.config": "all-3g.40gb"}, "nvidia.com/gpu", "h100_sxm-mig-3g.40gb"),
        ("h100", {"nvidia.com/mig.config": "all-disabled"}, "nvidia.com/gpu", "h100_sxm"),
        ("a100", {"cloud.google.com/gke-gpu-partition-size": "1g.10gb"}, "nvidia.com/gpu", "a100_sxm-mig-1g.10gb"),
        # No profile, one that no such GPU has, and a slice of an unknown GPU.
        ("h100-mig", {}, "nvidia.com/gpu", None),
        ("h100", {"nvidia.com/mig.config": "all-balanced"}, "nvidia.com/gpu", None),
        ("h100", {}, "nvidia.com/mig-3g.77gb", None),
        ("h100", {}, "nvidia.com/mig-7g.10gb", None),
        ("pool", {}, "nvidia.com/mig-3g.40gb", None),
        # GPUs that MIG cannot divide.
        ("l40s", {}, "nvidia.com/mig-1g.6gb", None),
        ("rtx-6000-ada", {}, "nvidia.com/mig-1g.24gb", None),
    ],
)
def test_the_profile_comes_from_the_resource_a_label_or_the_name(
    name: str, labels: dict[str, str], resource: str, found: str | None
) -> None:
    assert system(name, labels, resource) == found


@pytest.mark.parametrize(
    ("labels", "resource"),
    [
        ({PRODUCT: "NVIDIA-H100-80GB-HBM3-SHARED"}, "nvidia.com/gpu"),
        ({PRODUCT: "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED"}, "nvidia.com/gpu"),
        ({}, "nvidia.com/gpu.shared"),
        ({}, "nvidia.com/mig-1g.10gb.shared"),
        ({"nvidia.com/gpu.sharing-strategy": "time-slicing"}, "nvidia.com/gpu"),
        ({"nvidia.com/gpu.replicas": "4"}, "nvidia.com/gpu"),
        ({"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}, "nvidia.com/gpu"),
        ({PRODUCT: "NVIDIA-A40-12Q"}, "nvidia.com/gpu"),
        ({PRODUCT: "GRID-A100-10C"}, "nvidia.com/gpu"),
        ({}, "nvidia.com/gpumem"),
        ({}, "aliyun.com/gpu-mem"),
        ({}, "volcano.sh/vgpu-number"),
        ({PRODUCT: "NVIDIA-GeForce-RTX-4090-Laptop-GPU"}, "nvidia.com/gpu"),
    ],
)
def test_a_shared_or_smaller_gpu_is_unknown_whatever_its_name(labels: dict[str, str], resource: str) -> None:
    assert system("h100", labels, resource) is None


def test_a_gpu_that_says_it_is_not_shared_is_known() -> None:
    labels = {"nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.sharing-strategy": "none"}
    assert system("h100", labels) == "h100_sxm"


def test_parts_of_other_accelerators_are_unknown() -> None:
    assert system("trn2", {}, "aws.amazon.com/neuroncore") is None
    assert system("mi300x", {}, "amd.com/cpx_nps4") is None
    assert system("mi300x", {}, "amd.com/gpu") == "mi300x"


def test_a_prior_says_whether_model_or_accelerator_is_unknown() -> None:
    def unknown(model: str, accelerator: str) -> tuple[bool, bool]:
        prior = engine_prior(model, accelerator)
        assert (prior.source is PriorSource.UNKNOWN) == (prior.unknown_model or prior.unknown_accelerator)
        return prior.unknown_model, prior.unknown_accelerator

    assert unknown("Qwen/Qwen3-8B", "h100") == (False, False)
    assert unknown("/models/x", "h100") == (True, False)
    assert unknown("Qwen/Qwen3-8B", "pool") == (False, True)
    assert unknown("", "") == (True, True)


def test_a_slice_has_no_table_and_holds_fewer_tokens() -> None:
    whole = engine_prior("Qwen/Qwen3-8B", "h100")
    part = engine_prior("Qwen/Qwen3-8B", "h100", resource="nvidia.com/mig-3g.40gb")
    assert (whole.source, part.source) == (PriorSource.TABLE, PriorSource.ROOFLINE)
    assert part.kv_tokens < whole.kv_tokens / 2
    assert part.law.c0 > 1.5 * whole.law.c0


def test_the_resource_of_an_accelerator_of_a_spec_counts() -> None:
    def source(resource: str) -> PriorSource:
        return option_prior("Qwen/Qwen3-8B", AcceleratorOption("h100", resource)).source

    assert source("nvidia.com/gpu") is PriorSource.TABLE
    assert source("nvidia.com/mig-3g.40gb") is PriorSource.ROOFLINE
    assert source("nvidia.com/gpu.shared") is PriorSource.UNKNOWN


def test_declared_hardware_makes_any_accelerator_known() -> None:
    for name, resource in (("pool", "nvidia.com/gpu"), ("h100", "nvidia.com/gpu.shared")):
        option = AcceleratorOption(name, resource, hardware=Hardware(40.0, 1000.0, 400.0))
        prior = option_prior("Qwen/Qwen3-8B", option)
        assert (prior.source, prior.unknown_accelerator) == (PriorSource.ROOFLINE, False)
        memory = EngineMemory(40.0 * GIB, MEMORY_UTILIZATION, 2 * 8.19e9, 2 * 36 * 8 * 128 * 2, 36, 4096, 151_936)
        assert prior.kv_tokens == memory.parts(256, 2048, 512).kv_tokens


def test_declared_hardware_overrides_the_catalog() -> None:
    slow = option_prior("Qwen/Qwen3-8B", AcceleratorOption("h100", hardware=Hardware(80.0, 335.0, 99.0)))
    assert slow.table is None
    assert slow.law.c0 > 5.0 * option_prior("Qwen/Qwen3-8B", AcceleratorOption("h100")).law.c0


def test_an_unknown_model_stays_unknown_on_declared_hardware() -> None:
    prior = option_prior("/models/x", AcceleratorOption("pool", hardware=Hardware(80.0, 3350.0, 989.0)))
    assert (prior.source, prior.unknown_model, prior.unknown_accelerator) == (PriorSource.UNKNOWN, True, False)


@given(st.text(max_size=40), st.dictionaries(st.text(max_size=10), st.text(max_size=20)), st.text(max_size=40))
def test_no_text_is_a_problem(name: str, labels: dict[str, str], resource: str) -> None:
    find_accelerator(name, {**labels, PRODUCT: resource}, resource)
