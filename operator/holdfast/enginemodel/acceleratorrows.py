"""Accelerators by their vendors' data sheets."""

from __future__ import annotations

from holdfast.enginemodel.shapes import GIB, PCIE, AcceleratorShape

NVLINK = 300e9
"""Bytes/s as all-reduces see them on a link of the class of NVLink: two thirds of the data sheet."""


def _gpu(system: str, gib: float, terabytes: float, petaflops: float, link: float = PCIE) -> AcceleratorShape:
    """A row in the units of data sheets."""
    return AcceleratorShape(system, gib * GIB, float(round(terabytes * 1e12)), float(round(petaflops * 1e15)), link)


ACCELERATORS: tuple[tuple[str, AcceleratorShape], ...] = (
    # A pattern that the lower-case product label or accelerator name must have as whole words; the first that matches
    # wins. Memory as the driver reports it, bandwidth and dense 16-bit peak from the vendors' data sheets.
    (r"gb300|b300", _gpu("b300", 268.6, 8.0, 2.25, NVLINK)),
    (r"gb200|b200", _gpu("b200_sxm", 179.1, 8.0, 2.25, NVLINK)),
    (r"gh200.*144gb?|gh200-141gb", _gpu("gh200_144gb", 140.4, 4.8, 0.989, NVLINK)),
    (r"gh200", _gpu("gh200", 95.6, 4.0, 0.989, NVLINK)),
    (r"h200.*nvl", _gpu("h200_nvl", 140.4, 4.8, 0.835, NVLINK)),
    (r"h200", _gpu("h200_sxm", 140.4, 4.8, 0.989, NVLINK)),
    (r"h100.*nvl", _gpu("h100_nvl", 93.6, 3.9, 0.835, NVLINK)),
    (r"h100.*pcie", _gpu("h100_pcie", 79.6, 2.0, 0.756)),
    (r"h100|h800", _gpu("h100_sxm", 79.6, 3.35, 0.989, NVLINK)),
    (r"h20", _gpu("h20", 95.6, 4.0, 0.148, NVLINK)),
    # GKE names the A100 with 40 GB without its memory.
    (r"a100.*40gb|nvidia-tesla-a100", _gpu("a100_40gb", 40.0, 1.555, 0.312, NVLINK)),
    (r"a100|a800", _gpu("a100_sxm", 80.0, 2.039, 0.312, NVLINK)),
    (r"rtx-?pro-?6000", _gpu("rtx_pro_6000_server", 95.6, 1.6, 0.5)),
    (r"rtx-?6000-?ada", _gpu("rtx_6000_ada", 48.0, 0.96, 0.364)),
    (r"(rtx-?)?a6000", _gpu("a6000", 48.0, 0.768, 0.1548)),
    (r"l40s", _gpu("l40s", 45.0, 0.864, 0.362)),
    (r"l40", _gpu("l40", 45.0, 0.864, 0.181)),
    (r"l20", _gpu("l20", 45.0, 0.864, 0.1195)),
    (r"l4", _gpu("l4", 22.5, 0.3, 0.121)),
    (r"a40", _gpu("a40", 45.0, 0.696, 0.1497)),
    (r"a30", _gpu("a30", 24.0, 0.933, 0.165)),
    (r"a10g?", _gpu("a10g", 22.5, 0.6, 0.07)),
    (r"(rtx-?)?5090", _gpu("rtx5090", 31.8, 1.792, 0.2095)),
    (r"(rtx-?)?4090", _gpu("rtx4090", 24.0, 1.008, 0.165)),
    (r"(rtx-?)?3090", _gpu("rtx3090", 24.0, 0.936, 0.071)),
    (r"t4", _gpu("t4", 15.0, 0.32, 0.065)),
    (r"v100.*32gb", _gpu("v100_32gb", 32.0, 0.9, 0.125, NVLINK)),
    # GKE names the V100 with 16 GB without its memory; the smaller card errs to the safe side.
    (r"v100", _gpu("v100", 16.0, 0.9, 0.125, NVLINK)),
    (r"mi355x?", _gpu("mi355x", 288.0, 8.0, 2.5, NVLINK)),
    (r"mi350x?", _gpu("mi350x", 288.0, 8.0, 2.3, NVLINK)),
    (r"mi325x?", _gpu("mi325x", 256.0, 6.0, 1.307, NVLINK)),
    (r"mi300x?", _gpu("mi300x", 192.0, 5.3, 1.307, NVLINK)),
    (r"gaudi-?3|hl-?325l?|hl-?338", _gpu("gaudi3", 128.0, 3.7, 1.835, NVLINK)),
    (r"gaudi-?2|hl-?225[bdh]?", _gpu("gaudi2", 96.0, 2.45, 0.432, 175e9)),
    (r"(tpu-?)?v5e|(tpu-)?v5-?lite(-podslice|-device|pod)?", _gpu("tpu_v5e", 16.0, 0.819, 0.197, 100e9)),
    (r"(tpu-?)?v5p(-slice)?", _gpu("tpu_v5p", 95.0, 2.765, 0.459, NVLINK)),
    (r"(tpu-?)?v6e(-slice|-device)?|trillium", _gpu("tpu_v6e", 32.0, 1.64, 0.918, 200e9)),
    (r"trainium-?2|trn2", _gpu("trainium2", 96.0, 2.9, 0.667, 200e9)),
    (r"trainium(-?1)?|trn1n?", _gpu("trainium1", 32.0, 0.82, 0.19, 100e9)),
    (r"inferentia-?2|inf2", _gpu("inferentia2", 32.0, 0.82, 0.19)),
)

GENERIC_ACCELERATOR = _gpu("generic", 62.8, 1.85, 0.394)
"""What an unknown accelerator is taken for until its engines say more: the geometric mean of the rows above.

The rows are a factor of 2.5 to 2.9 apart (one deviation), so the belief about an unknown one is wide.
"""

PRODUCT_LABELS = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-tpu-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "karpenter.k8s.aws/instance-accelerator-name",
    "amd.com/gpu.product-name",
)
"""Node labels that name the accelerator, the most exact first."""

DIVISIBLE = ("a100", "a30", "h100", "h20", "gh200", "b200", "b300", "rtx_pro_6000")
"""Beginnings of the names of systems that MIG can divide; h20 covers H20 and H200."""

QUARTERS = ("a30", "rtx_pro_6000_server")
"""GPUs that MIG cuts into four slices of compute and memory; others have seven of compute and eight of memory."""
