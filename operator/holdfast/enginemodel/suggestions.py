"""The row of the catalog that somebody meant who misspelled its name."""

from __future__ import annotations

from functools import cache

from holdfast.api.suggestions import did_you_mean
from holdfast.enginemodel.catalog import ACCELERATORS, MODELS, find_accelerator
from holdfast.enginemodel.modelnames import model_name


@cache
def accelerator_names() -> tuple[str, ...]:
    """Return short and full names of the accelerators in the catalog, such as h100 and h100-pcie."""
    systems = [shape.system for _, shape in ACCELERATORS]
    names = dict.fromkeys(each for system in systems for each in (system.split("_")[0], system.replace("_", "-")))
    return tuple(name for name in names if find_accelerator(name) is not None)


def like_accelerator(name: str) -> str:
    """Return the question whether a known accelerator was meant, empty if none is near."""
    return did_you_mean(name.lower(), accelerator_names())


def like_model(uri: str) -> str:
    """Return the question whether a known model was meant, empty if none is near."""
    by_name = {model_name(shape.name): shape.name for _, shape in MODELS}
    near = did_you_mean(model_name(uri), by_name)
    return next((near.replace(name, full) for name, full in by_name.items() if f" {name}?" in near), "")
