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
_LEAVING, _COMING = (
    {"name": "leaving", **_ON_L40S, "costPerHour": 1.0},
    {"name": "coming", **_ON_L40S, "costPerHour": 2.0},
)
_SIZES = {"scaled": 2, "pinned": 2, "single": 1}


@pytest.fixture(scope="module")
def history(operator: None, place: Kubectl) -> dict[str, list[Json]]:
    """All states of the Deployments while every service leaves the cheaper accelerator, which an edit forbids."""
    place.apply([_service(name, size) for name, size in _SIZES.items()])
    for name, size in _SIZES.items():
        place.wait_for("llms", name, lambda found, size=size: _serves(found, "leaving", size), _SECONDS, "Ready")
    with place.recorded("deployments", "holdfast.dev/service", 5.0 * _SECONDS) as states:
        place.wait_until(lambda: {_owner(state) for state in states()} == set(_SIZES), 30, "what there is at first")
        for name in _SIZES:
            place.patch("llms", name, {"spec": {"accelerators": [{**_LEAVING, "max": 0}, _COMING]}})
        for name, size in _SIZES.items():
            place.wait_for("llms", name, lambda found, size=size: _serves(found, "coming", size), _SECONDS, "moved")
        place.wait_until(lambda: _have_moved(states()), 30, "the last states")
        return {name: [state for state in states() if _owner(state) == name] for name in _SIZES}


@pytest.mark.parametrize("name", _SIZES)
def test_sizes_never_sum_up_to_more_than_scaling_max(history: dict[str, list[Json]], name: str) -> None:
    sums = list(_sums(history[name], _size))
    assert max(sums) == _SIZES[name]
    assert min(sums) == _SIZES[name] - 1, "one at a time goes before the one that takes its place is written"


@pytest.mark.parametrize("name", ["scaled", "pinned"])
def test_somebody_serves_all_the_time(history: dict[str, list[Json]], name: str) -> None:
    assert min(_sums(history[name], lambda state: int(state["status"].get("readyReplicas", 0)))) >= 1


def _service(name: str, size: int) -> Json:
    made = stack.small_service(name, min=size, max=size)
    made["spec"]["accelerators"] = [_LEAVING, _COMING]
    if name == "pinned":
        made["spec"] |= {"replicas": size, "scaling": {"min": 1, "max": size}}
    return made


def _serves(found: Json, accelerator: str, size: int) -> bool:
    placed = {entry["accelerator"]: entry["ready"] for entry in found.get("status", {}).get("placements", ())}
    return condition(found, "Ready").get("status") == "True" and placed.get(accelerator, 0) == size


def _have_moved(states: list[Json]) -> bool:
    """Whether the record goes on to the end, and was not cut short before."""
    last = {state["metadata"]["name"]: _size(state) for state in states}
    return all((last.get(f"{name}-leaving"), last.get(f"{name}-coming")) == (0, size) for name, size in _SIZES.items())


def _size(deployment: Json) -> int:
    return int(deployment["spec"]["replicas"])


def _owner(deployment: Json) -> str:
    return str(deployment["metadata"]["labels"]["holdfast.dev/service"])


def _sums(states: Iterable[Json], size: Callable[[Json], int]) -> Iterator[int]:
    """The sum over all Deployments of one service after each of their states."""
    sizes: dict[str, int] = {}
    for state in states:
        sizes[state["metadata"]["name"]] = size(state)
        yield sum(sizes.values())
