"""Services that leave an accelerator where scaling.max has no room for old and new ones side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from e2e import stack
from e2e.cluster import nodes
from e2e.kubectl import Json, Kubectl, condition

pytestmark = pytest.mark.cluster

_SECONDS = 120.0
_ON_L40S = {"nodeSelector": {nodes.GPU_PRODUCT_LABEL: stack.L40S}}
_LEFT, _NEXT = {"name": "left", **_ON_L40S, "costPerHour": 1.0}, {"name": "next", **_ON_L40S, "costPerHour": 2.0}
_SIZES = {"scaled": 2, "pinned": 2, "single": 1}


@pytest.fixture(scope="module")
def history(operator: None, place: Kubectl) -> Iterator[dict[str, list[Json]]]:
    """All states of the Deployments while every service leaves the cheaper accelerator, which an edit forbids."""
    place.apply([_service(name, size) for name, size in _SIZES.items()])
    for name, size in _SIZES.items():
        place.wait_for("llms", name, lambda found, size=size: _serves(found, "left", size), _SECONDS, "Ready")
    with place.recorded("deployments", "holdfast.dev/service", 3.0 * _SECONDS) as states:
        place.wait_until(lambda: len(states) == len(_SIZES), 30, "what there is before the edits")
        for name in _SIZES:
            place.patch("llms", name, {"spec": {"accelerators": [{**_LEFT, "max": 0}, _NEXT]}})
        for name, size in _SIZES.items():
            place.wait_for("llms", name, lambda found, size=size: _serves(found, "next", size), _SECONDS, "moved")
        yield {name: [state for state in states if _owner(state) == name] for name in _SIZES}


@pytest.mark.parametrize("name", _SIZES)
def test_sizes_never_sum_up_to_more_than_scaling_max(history: dict[str, list[Json]], name: str) -> None:
    sums = list(_sums(history[name], lambda state: int(state["spec"]["replicas"])))
    assert max(sums) == _SIZES[name]
    assert min(sums) == _SIZES[name] - 1, "one at a time goes before the one that takes its place is written"


@pytest.mark.parametrize("name", ["scaled", "pinned"])
def test_somebody_serves_all_the_time(history: dict[str, list[Json]], name: str) -> None:
    assert min(_sums(history[name], lambda state: int(state["status"].get("readyReplicas", 0)))) >= 1


def _service(name: str, size: int) -> Json:
    made = stack.small_service(name, min=size, max=size)
    made["spec"]["accelerators"] = [_LEFT, _NEXT]
    if name == "pinned":
        made["spec"] |= {"replicas": size, "scaling": {"min": 1, "max": size}}
    return made


def _serves(found: Json, accelerator: str, size: int) -> bool:
    placed = {entry["accelerator"]: entry["ready"] for entry in found.get("status", {}).get("placements", ())}
    return condition(found, "Ready").get("status") == "True" and placed.get(accelerator, 0) == size


def _owner(deployment: Json) -> str:
    return str(deployment["metadata"]["labels"]["holdfast.dev/service"])


def _sums(states: Iterable[Json], size: Callable[[Json], int]) -> Iterator[int]:
    """The sum over all Deployments of one service after each of their states."""
    sizes: dict[str, int] = {}
    for state in states:
        sizes[state["metadata"]["name"]] = size(state)
        yield sum(sizes.values())
