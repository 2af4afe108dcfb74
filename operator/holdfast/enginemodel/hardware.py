"""Decide whether two accelerators of a spec are the same hardware."""

from __future__ import annotations

from functools import lru_cache

from holdfast.domain.service import AcceleratorOption
from holdfast.enginemodel.catalog import PRODUCT_LABELS, find_accelerator


@lru_cache(maxsize=8192)
def same_hardware(one: AcceleratorOption, other: AcceleratorOption) -> bool:
    """Return whether replicas on both run alike on equal hardware: resource, GPUs and their parallelism, GPU model.

    A GPU that is not in the catalog is identified by its product label, or by a name such as `x-spot` next to `x`.
    """
    if len({(o.resource, o.gpus_per_replica, o.pipeline, o.data, o.hardware) for o in (one, other)}) > 1:
        return False
    selectors = dict(one.node_selector), dict(other.node_selector)
    known = find_accelerator(one.name, selectors[0]), find_accelerator(other.name, selectors[1])
    if known != (None, None):
        return known[0] == known[1]
    products = [tuple(labels.get(label) for label in PRODUCT_LABELS) for labels in selectors]
    named = other.name == one.name or other.name.startswith(f"{one.name}-") or one.name.startswith(f"{other.name}-")
    return products[0] == products[1] and (any(products[0]) or named)
