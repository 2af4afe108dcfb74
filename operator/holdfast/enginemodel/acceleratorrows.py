"""Accelerators by their data sheets, and how product labels and names lead to them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.enginemodel.shapes import GIB, AcceleratorShape

NVLINK = 300e9

ACCELERATORS: tuple[tuple[str, AcceleratorShape], ...] = (
    # A pattern searched in the lower-case product label or accelerator name; the first that matches wins. Memory as
    # the driver reports it, bandwidth and dense 16-bit peak from the vendors' data sheets.
    (r"gb300|b300", AcceleratorShape("b300", 268.6 * GIB, 8.0e12, 2.25e15, NVLINK)),
    (r"gb200|b200", AcceleratorShape("b200_sxm", 179.1 * GIB, 8.0e12, 2.25e15, NVLINK)),
    (r"gh200|h200", AcceleratorShape("h200_sxm", 140.4 * GIB, 4.8e12, 0.989e15, NVLINK)),
    (r"h100.*nvl", AcceleratorShape("h100_nvl", 93.6 * GIB, 3.9e12, 0.835e15, NVLINK)),
    (r"h100.*pcie", AcceleratorShape("h100_pcie", 79.6 * GIB, 2.0e12, 0.756e15)),
    (r"h100|h800", AcceleratorShape("h100_sxm", 79.6 * GIB, 3.35e12, 0.989e15, NVLINK)),
    (r"h20", AcceleratorShape("h20", 95.6 * GIB, 4.0e12, 0.148e15, NVLINK)),
    (r"a100.*40gb", AcceleratorShape("a100_40gb", 40.0 * GIB, 1.555e12, 0.312e15, NVLINK)),
    (r"a100|a800", AcceleratorShape("a100_sxm", 80.0 * GIB, 2.039e12, 0.312e15, NVLINK)),
    (r"rtx.?pro.?6000", AcceleratorShape("rtx_pro_6000_server", 95.6 * GIB, 1.6e12, 0.5e15)),
    (r"l40s", AcceleratorShape("l40s", 45.0 * GIB, 0.864e12, 0.362e15)),
    (r"l40", AcceleratorShape("l40", 45.0 * GIB, 0.864e12, 0.181e15)),
    (r"(^|[^a-z0-9])l4([^0-9a-z]|$)", AcceleratorShape("l4", 22.5 * GIB, 0.3e12, 0.121e15)),
    (r"a10g?([^0-9a-z]|$)", AcceleratorShape("a10g", 22.5 * GIB, 0.6e12, 0.07e15)),
    (r"5090", AcceleratorShape("rtx5090", 31.8 * GIB, 1.792e12, 0.2095e15)),
    (r"4090", AcceleratorShape("rtx4090", 24.0 * GIB, 1.008e12, 0.165e15)),
    (r"(^|[^a-z0-9])t4([^0-9a-z]|$)", AcceleratorShape("t4", 15.0 * GIB, 0.32e12, 0.065e15)),
    (r"v100", AcceleratorShape("v100", 32.0 * GIB, 0.9e12, 0.125e15, NVLINK)),
    (r"mi325", AcceleratorShape("mi325x", 256.0 * GIB, 6.0e12, 1.307e15, NVLINK)),
    (r"mi300", AcceleratorShape("mi300x", 192.0 * GIB, 5.3e12, 1.307e15, NVLINK)),
)

GENERIC_ACCELERATOR = AcceleratorShape("generic", 22.5 * GIB, 0.6e12, 0.1e15)
"""A small data-centre GPU: what an unknown one is taken for, so that a guess errs to the safe side."""

PRODUCT_LABELS = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "amd.com/gpu.product-name",
)
"""Node labels that name the GPU, the most exact first."""


def find_accelerator(name: str, node_selector: Mapping[str, str] | None = None) -> AcceleratorShape | None:
    """The known accelerator that the node labels name, else the one its own name suggests, or None."""
    labels = node_selector or {}
    for text in [labels[label] for label in PRODUCT_LABELS if label in labels] + [name]:
        for pattern, shape in ACCELERATORS:
            if re.search(pattern, text.lower()):
                return shape
    return None
