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
_CROWD = {"crowded": (2, 4), "brimful": (2, 2), "crowding": (1, 4)}
_MOVING = {**_SIZES, "crowded": 2, "brimful": 2}
_OTHERS = {"env": [{"name": "EDITED", "value": "too"}]}

_FULL = "example.com/full"
_ON_FULL = [{**each, "nodeSelector": {"kubernetes.io/os": "linux"}, "resource": _FULL} for each in (_LEAVING, _COMING)]


@pytest.fixture(scope="module")
def crowd(operator: None, place: Kubectl) -> Iterator[None]:
    """Services that hold all GPUs of a kind, whether scaling.max has room for more or not."""
    nodes.set_node_capacity({_FULL: sum(size for size, _ in _CROWD.values())})
    crowding = [_service(name, size, most) for name, (size, most) in _CROWD.items()]
    for made in crowding:
        made["spec"]["accelerators"] = _ON_FULL
    place.apply(crowding)
    yield
    nodes.set_node_capacity({_FULL: None})


@pytest.fixture(scope="module")
def history(crowd: None, place: Kubectl) -> dict[str, list[Json]]:
    """All states of the Deployments while every service leaves the cheaper accelerator, which an edit forbids.

    The same edit asks for other engines.
    """
    place.apply([_service(name, size) for name, size in _SIZES.items()])
    for name, (size, _) in _CROWD.items():
        place.wait_for("llms", name, lambda found, size=size: _serves(found, "leaving", size), _SECONDS, "Ready")
    for name, size in _SIZES.items():
        place.wait_for("llms", name, lambda found, size=size: _serves(found, "leaving", size), _SECONDS, "Ready")
    with place.recorded("deployments", "holdfast.dev/service", 5.0 * _SECONDS) as states:
        place.wait_until(lambda: {_owner(state) for state in states()} >= set(_MOVING), 30, "what there is at first")
        for name in _MOVING:
            leaving, coming = _ON_FULL if name in _CROWD else (_LEAVING, _COMING)
            place.patch("llms", name, {"spec": {"accelerators": [{**leaving, "max": 0}, coming], "engine": _OTHERS}})
        for name, size in _MOVING.items():
            place.wait_for("llms", name, lambda found, size=size: _serves(found, "coming", size), _SECONDS, "moved")
        place.wait_until(lambda: _have_moved(states()), 30, "the last states")
        return {name: [state for state in states() if _owner(state) == name] for name in _MOVING}


@pytest.mark.parametrize("name", _SIZES)
def test_sizes_never_sum_up_to_more_than_scaling_max(history: dict[str, list[Json]], name: str) -> None:
    sums = list(_sums(history[name], _size))
    assert max(sums) == _SIZES[name]
    assert min(sums) == _SIZES[name] - 1, "one at a time goes before the one that takes its place is written"


@pytest.mark.parametrize("name", ["scaled", "pinned", "crowded", "brimful"])
def test_somebody_serves_all_the_time(history: dict[str, list[Json]], name: str) -> None:
    assert min(_sums(history[name], lambda state: int(state["status"].get("readyReplicas", 0)))) >= 1


def test_on_nodes_full_of_others_a_service_takes_the_places_of_its_own(
    history: dict[str, list[Json]], place: Kubectl
) -> None:
    assert condition(place.get_json("llms", "crowded"), "CapacityAvailable")["status"] == "True"
    assert place.get_json("deployment", "crowding-leaving")["spec"]["replicas"] == 1


def _service(name: str, size: int, most: int = 0) -> Json:
    made = stack.small_service(name, min=size, max=most or size)
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
    return all((last.get(f"{name}-leaving"), last.get(f"{name}-coming")) == (0, size) for name, size in _MOVING.items())


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
