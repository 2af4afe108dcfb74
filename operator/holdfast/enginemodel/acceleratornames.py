"""What labels, resource and name say about an accelerator: its model, and whether a replica gets a whole one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from holdfast.enginemodel.acceleratorrows import ACCELERATORS, DIVISIBLE, PRODUCT_LABELS, QUARTERS
from holdfast.enginemodel.shapes import GIB, AcceleratorShape

_SHARING_LABELS = ("nvidia.com/gpu.sharing-strategy", "cloud.google.com/gke-gpu-sharing-strategy")
_REPLICAS_LABEL = "nvidia.com/gpu.replicas"
"""Above 1 where the device plugin shares a GPU among so many pods."""
_MIG_LABEL, _PARTITION_LABEL = "nvidia.com/mig.config", "cloud.google.com/gke-gpu-partition-size"
IDENTIFYING_LABELS = (*PRODUCT_LABELS, *_SHARING_LABELS, _REPLICAS_LABEL, _MIG_LABEL, _PARTITION_LABEL)
"""Labels of nodes that say what a replica gets there."""

MACHINE_LABEL = "node.kubernetes.io/instance-type"
# Machines of AWS and Google Cloud whose names do not say which GPUs they have, by the documentation of both.
_MACHINES = (
    (r"p3\.", "v100"), (r"p4d\.", "a100-40gb"), (r"p4de\.", "a100-80gb"), (r"p5\.", "h100"), (r"p5en?\.", "h200"),
    (r"p6-b200\.", "b200"), (r"g4dn\.", "t4"), (r"g5\.", "a10g"), (r"gr?6\.", "l4"), (r"g6e\.", "l40s"),
    (r"a2-highgpu-", "a100-40gb"), (r"a2-ultragpu-", "a100-80gb"), (r"a3-(high|mega|edge)gpu-", "h100"),
    (r"a3-ultragpu-", "h200"), (r"a4-highgpu-", "b200"), (r"g2-standard-", "l4"),
)  # fmt: skip

_PROFILE = re.compile(r"(?<![a-z0-9])([1-7])g[.-]([0-9]{1,3})gb(?![a-z0-9])")
_PARTITIONED = re.compile(rf"(?<![a-z0-9])mig(?![a-z0-9])|{_PROFILE.pattern}")
_MEMORY = re.compile(r"(?<![a-z0-9])([0-9]{2,3})gb(?![a-z0-9])")
_CPU_MEMORY = "gh200"
"""The product label of this superchip (`GH200-480GB`) states the memory of its CPU."""

_NOT_PARTITIONED = "all-disabled"
_SHARED = re.compile(
    r"(?<![a-z0-9])(shared|time-?slic(ed|ing)|time-?sharing|mps|vgpu|vcuda|[cdq]px|neuroncore|gpu-?(mem(ory)?|cores?))"
    r"(?![a-z0-9])"
)
_VGPU = re.compile(r"^grid-|-[0-9]+[abcq]$")
"""Product labels of NVIDIA vGPU, such as `A40-12Q` and `GRID-A100-10C`; names may end like that by their zone."""

_SMALLER = re.compile(r"(?<![a-z0-9])(laptop|mobile)(?![a-z0-9])")
_SAYING_NOTHING = re.compile(
    r"(nvidia|amd|intel|google|aws|tesla|geforce|instinct|tensor|core|gpu|[0-9]+gb|hbm[0-9]?e?|sxm[0-9]?|pcie|nvl[0-9]*"
    r"|oam|blackwell|server|edition|spot|preemptible|ondemand|on|demand|reserved|mig|[1-7]g[.]?[0-9]*(gb)?|[0-9]+)"
)
"""Words next to the name of a GPU that leave no doubt about it: makers, memory, sockets, and how its nodes are paid."""
_MEMORY_SLICES = {1: (1, 2), 2: (2,), 3: (4,), 4: (4,), 7: (8,)}
"""Of eight, by compute slices of seven."""

_QUARTER_SLICES = {1: (1,), 2: (2,), 4: (4,)}


def find_accelerator(
    name: str, node_selector: Mapping[str, str] | None = None, resource: str = ""
) -> AcceleratorShape | None:
    """The known accelerator that the node labels name, else the one its own name suggests, or None.

    Of a GPU that MIG divides, it is the slice by the profile in the resource, a label or the name. A GPU that is shared
    in another way is unknown: what a replica gets of it depends on the other pods.
    """
    labels = node_selector or {}
    products = [_words(labels[label]) for label in PRODUCT_LABELS if label in labels]
    parts = [_words(resource), *products, *_partitions(labels), _words(name)]
    if _is_shared(parts, labels) or any(map(_VGPU.search, products)) or any(map(_SMALLER.search, parts)):
        return None
    whole = next(filter(None, map(_row, [*products, _words(name)])), None)
    if whole is None or not any(map(_PARTITIONED.search, parts)):
        return whole
    profile = next(filter(None, map(_PROFILE.search, parts)), None)
    return profile and _slice(whole, int(profile[1]), int(profile[2]))


def accelerator_of_machine(name: str) -> str:
    """The GPU of a cloud's machine type, as in `p5.48xlarge` or `Standard_ND96isr_H100_v5`; empty if unknown.

    Source: the instance types of Amazon EC2 and the GPU machine types of Compute Engine; names of Azure have the GPU.
    """
    words = _words(name)
    known = next((gpu for pattern, gpu in _MACHINES if re.match(pattern, words)), "")
    if known or not words.startswith("standard-n"):
        return known
    return next((found.group() for pattern, _ in ACCELERATORS if (found := _whole_words(pattern).search(words))), "")


def taken_for(name: str, node_selector: Mapping[str, str] | None = None, resource: str = "") -> AcceleratorShape | None:
    """The known accelerator that a name suggests, with further words that may tell another one (`h200-foo`).

    None where labels name the product, or the name is that of a known accelerator.
    """
    if any(label in (node_selector or {}) for label in PRODUCT_LABELS):
        return None
    shape = find_accelerator(name, node_selector, resource)
    words = _words(name)
    found = next(filter(None, (_whole_words(pattern).search(words) for pattern, _ in ACCELERATORS)), None)
    if shape is None or found is None:
        return None
    rest = f"{words[: found.start()]}-{words[found.end() :]}".split("-")
    return shape if any(word and not _SAYING_NOTHING.fullmatch(word) for word in rest) else None


def _partitions(labels: Mapping[str, str]) -> list[str]:
    """What the labels say about MIG apart from the product."""
    config = labels.get(_MIG_LABEL, _NOT_PARTITIONED)
    size = labels.get(_PARTITION_LABEL)
    said = [None if config == _NOT_PARTITIONED else config, size]
    return [_words(f"mig {each}") for each in said if each is not None]


def _words(text: str) -> str:
    return re.sub(r"[_\s/]+", "-", text.strip().lower())


@lru_cache(maxsize=4096)
def _row(text: str) -> AcceleratorShape | None:
    """The first row with this name; None for a variant with another memory, such as the H100 with 64 GB."""
    shape = next((shape for pattern, shape in ACCELERATORS if _whole_words(pattern).search(text)), None)
    stated = [float(number) for number in _MEMORY.findall(_PROFILE.sub("", text))]
    if shape is None or not stated or shape.system.startswith(_CPU_MEMORY):
        return shape
    return shape if any(abs(each * GIB / shape.memory_bytes - 1.0) < 0.15 for each in stated) else None


@lru_cache(maxsize=512)
def _whole_words(pattern: str) -> re.Pattern[str]:
    """The pattern as whole words, next to which a number of GPUs (`8xh100`) or a form factor (`h100sxm`) may stand."""
    return re.compile(rf"(?<![a-z0-9])([0-9]+x)?({pattern})(-?(sxm[0-9]?|pcie|nvl|ti))?(x[0-9]+)?(?![a-z0-9])")


def _is_shared(parts: list[str], labels: Mapping[str, str]) -> bool:
    replicas = labels.get(_REPLICAS_LABEL, "1")
    strategies = {labels.get(label, "none") for label in _SHARING_LABELS}
    return replicas != "1" or strategies != {"none"} or any(map(_SHARED.search, parts))


def _slice(whole: AcceleratorShape, compute: int, gigabytes: int) -> AcceleratorShape | None:
    """So many compute slices of a GPU, with the memory of the profile; None if no GPU of that family has the profile.

    Bandwidth follows the memory slices. Slices talk over PCIe.
    """
    if not whole.system.startswith(DIVISIBLE):
        return None
    # Names such as a100 do not tell the memory of the card, but the profile does.
    family = [whole, *(shape for _, shape in ACCELERATORS if _family(shape) == _family(whole))]
    return next(filter(None, (_slice_of(card, compute, gigabytes) for card in family)), None)


def _family(shape: AcceleratorShape) -> str:
    return shape.system.split("_")[0]


def _slice_of(card: AcceleratorShape, compute: int, gigabytes: int) -> AcceleratorShape | None:
    is_quartered = card.system in QUARTERS
    profiles, slices = (_QUARTER_SLICES, 4) if is_quartered else (_MEMORY_SLICES, 8)
    # Profiles round: 1g.18gb is an eighth of 140.4 GiB, 1g.23gb one of 179.1 GiB.
    memory = round(slices * gigabytes * GIB / card.memory_bytes)
    if memory not in profiles.get(compute, ()):
        return None
    return AcceleratorShape(
        f"{card.system}-mig-{compute}g.{gigabytes}gb",
        card.memory_bytes * memory / slices,
        card.bandwidth * memory / slices,
        card.peak_flops * compute / max(profiles),
    )
