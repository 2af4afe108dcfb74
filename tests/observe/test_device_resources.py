"""GPUs through DRA as the loop sees them: kopf's own indexing, fed with ResourceSlices and DeviceClasses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import kopf
import pytest

from holdfast.domain.cluster import NodeOffer
from holdfast.observe.objects.device_resources import DeviceResources, device_class, device_slice
from tests.observe.indexed import Indexed

DRIVER, GPU = "gpu.nvidia.com", "nvidia.com/gpu"
IS_GPU = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"
NODE = NodeOffer("n1", (), ())


class World(Indexed):
    """ResourceSlices and DeviceClasses."""

    def __init__(self) -> None:
        self.devices = DeviceResources()
        registry = kopf.OperatorRegistry()
        self.devices.register(registry)
        super().__init__(registry)

    async def hold(self, *bodies: dict[str, Any]) -> World:
        """These objects were added or changed."""
        for body in bodies:
            await self.put("deviceclasses" if body["kind"] == "DeviceClass" else "resourceslices", body)
        return self

    def offered(self, node: NodeOffer = NODE) -> dict[str, int]:
        (found,) = self.devices.added_to([node])
        return dict(found.allocatable)


def a_class(*expressions: str, name: str = "gpu", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> dict[str, Any]:
    selectors = [{"cel": {"expression": text}} for text in expressions or (IS_GPU,)]
    return {
        "kind": "DeviceClass",
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {"extendedResourceName": GPU, "selectors": selectors, **spec},
    }


def device(name: str = "gpu-0", kind: str = "gpu", **more: Any) -> dict[str, Any]:
    return {"name": name, "attributes": {"type": {"string": kind}, "index": {"int": 0}, "ecc": {"bool": True}}, **more}


def a_slice(
    *devices: dict[str, Any], name: str = "s1", generation: int = 1, parts: int = 1, **spec: Any
) -> dict[str, Any]:
    pool = {"name": "n1", "generation": generation, "resourceSliceCount": parts}
    content = {"driver": DRIVER, "nodeName": "n1", "pool": pool, "devices": list(devices), **spec}
    return {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": content}


async def test_devices_count_under_the_name_by_which_pods_ask_for_them() -> None:
    world = await (await World().start()).hold(a_class(), a_slice(device("a"), device("b"), device("c", kind="mig")))
    assert world.offered() == {GPU: 2}


async def test_a_class_without_such_a_name_has_one_of_its_own() -> None:
    world = await (await World().start()).hold(a_class(extendedResourceName=None), a_slice(device()))
    assert world.offered() == {"deviceclass.resource.kubernetes.io/gpu": 1}


async def test_what_the_node_offers_itself_counts_alone() -> None:
    world = await (await World().start()).hold(a_class(), a_slice(device()))
    assert world.offered(NodeOffer("n1", (), ((GPU, 8),))) == {GPU: 8}


async def test_other_nodes_and_shared_devices_offer_nothing() -> None:
    world = await (await World().start()).hold(a_class(), a_slice(device(), nodeName="n2"))
    await world.hold(a_slice(device(), name="net", nodeName=None, allNodes=True))
    assert world.offered() == {}


async def test_only_complete_pools_of_the_newest_generation_count() -> None:
    world = await (await World().start()).hold(a_class(), a_slice(device("a"), device("b"), name="old"))
    await world.hold(a_slice(device("a"), name="new-1", generation=2, parts=2))
    assert world.offered() == {}
    await world.hold(a_slice(device("b"), device("c"), name="new-2", generation=2, parts=2))
    assert world.offered() == {GPU: 3}


async def test_devices_are_counted_again_only_after_a_change() -> None:
    world = await (await World().start()).hold(a_class(), a_slice(device("a"), device("b")))
    (first,) = world.devices.added_to([NODE])
    (second,) = world.devices.added_to([NODE])
    assert second is first
    await world.hold(a_slice(device("a")))
    assert world.offered() == {GPU: 1}
    assert world.offered(replace(NODE, allocatable=(("example.com/fpga", 1),))) == {GPU: 1, "example.com/fpga": 1}
    await world.hold(a_class(extendedResourceName="example.com/gpu"))
    assert world.offered() == {"example.com/gpu": 1}
    world.remove("deviceclasses", a_class())
    assert world.offered() == {}


@pytest.mark.parametrize(
    "spoilt",
    [
        {"consumesCounters": [{"counterSet": "gpu-0", "counters": {}}]},
        {"allowMultipleAllocations": True},
    ],
)
async def test_devices_that_cannot_be_counted_leave_the_node_unknown(spoilt: dict[str, Any]) -> None:
    world = await (await World().start()).hold(a_class(), a_slice(device("a"), device("b", **spoilt)))
    assert world.offered() == {}


async def test_devices_that_a_driver_has_tainted_are_left_out() -> None:
    sick = device("b", taints=[{"key": "unhealthy", "effect": "NoExecute"}])
    noted = device("c", taints=[{"key": "warm", "effect": "None"}])
    world = await (await World().start()).hold(a_class(), a_slice(device("a"), sick, noted))
    assert world.offered() == {GPU: 2}


async def test_of_two_classes_with_one_name_the_newer_counts() -> None:
    newer = a_class(f'device.driver == "{DRIVER}"', name="all", created="2026-02-01T00:00:00Z")
    world = await (await World().start()).hold(newer, a_class(), a_slice(device("a"), device("b", kind="mig")))
    assert world.offered() == {GPU: 2}


@pytest.mark.parametrize(
    ("expression", "driver", "attributes"),
    [
        (IS_GPU, DRIVER, {(f"{DRIVER}/type", "gpu")}),
        (f'device.driver=="{DRIVER}"', DRIVER, set()),
        (
            f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].ecc == true "
            f"&& device.attributes['other.dev'].index == 3",
            DRIVER,
            {(f"{DRIVER}/ecc", "true"), ("other.dev/index", "3")},
        ),
        (f"device.driver == '{DRIVER}' || true", None, set()),
        (f"device.driver == '{DRIVER}' && device.capacity['memory'].isGreaterThan(quantity('40Gi'))", None, set()),
        ("device.driver == 'a' && device.driver == 'b'", None, set()),
        ("true", None, set()),
        ("", None, set()),
    ],
)
def test_selectors_are_read_as_far_as_they_are_equalities(
    expression: str, driver: str | None, attributes: set[tuple[str, str]]
) -> None:
    found = device_class(a_class(expression))
    assert (found.driver, found.attributes) == (driver, attributes)


@pytest.mark.parametrize("spec", [None, {}, {"nodeName": ""}, {"nodeSelector": {}}])
def test_a_slice_without_a_node_is_none(spec: object) -> None:
    assert device_slice({"metadata": {"name": "s"}, "spec": spec}) is None


async def test_a_class_without_selectors_selects_nothing_that_is_known() -> None:
    body = {"kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {"extendedResourceName": GPU}}
    world = await (await World().start()).hold(body, a_slice(device()))
    assert world.offered() == {}
