"""GPUs through Dynamic Resource Allocation: counted, used, and given up by a rollout on a full node.

python -m e2e.cluster run -- python -m pytest e2e/test_device_resources.py -m cluster
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e import stack
from e2e.cluster import nodes
from e2e.kubectl import Json, Kubectl, condition

pytestmark = pytest.mark.cluster

_PRODUCT, _DRIVER = "through-dra", "gpu.example.com"


@pytest.fixture(scope="module")
def node(operator: None, place: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node without extended resources, for which a driver publishes one GPU."""
    with nodes.start_kwok(tmp_path_factory.mktemp("kwok"), 2.0):
        (name,) = names = nodes.add_fake_nodes("dra", 1, {nodes.GPU_PRODUCT_LABEL: _PRODUCT}, {})
        try:
            nodes.wait_for_nodes(names)
            place.apply([_device_class(), _resource_slice(name)])
            yield name
        finally:
            place.run("delete", "deviceclass", "example-gpu", "--ignore-not-found")
            place.run("delete", "resourceslice", f"{name}-gpus", "--ignore-not-found")
            nodes.remove_nodes(names)


def test_a_gpu_through_dra_is_counted_and_a_rollout_on_the_full_node_gives_it_up(node: str, place: Kubectl) -> None:
    tolerations = [{"key": nodes.GPU, "operator": "Exists"}]
    accelerator = {"name": "dra", "nodeSelector": {nodes.GPU_PRODUCT_LABEL: _PRODUCT}, "tolerations": tolerations}
    place.apply(stack.service("dra", accelerators=[accelerator]))
    place.wait_for("llms", "dra", _serves, 120, "a replica with a GPU of the driver")
    told = condition(place.get_json("llms", "dra"), "CapacityAvailable")
    assert told["message"] == "every desired replica has a node"
    counted = place.run(
        "get", "--raw", f"/api/v1/namespaces/{stack.NAMESPACE}/pods/{stack.leader()}:8080/proxy/metrics"
    )
    assert f'holdfast_node_gpus{{product="{_PRODUCT}",resource="{nodes.GPU}",state="used"}} 1.0' in counted

    (before,) = place.items("pods", "holdfast.dev/service=dra")
    place.patch("llms", "dra", {"spec": {"engine": {"args": ["--cold-start=4"]}}})
    place.wait_until(lambda: _replaced(place, before), 180, "the replica replaced where no second GPU is")


def _replaced(place: Kubectl, before: Json) -> bool:
    pods = place.items("pods", "holdfast.dev/service=dra")
    return (
        len(pods) == 1
        and pods[0]["metadata"]["uid"] != before["metadata"]["uid"]
        and _serves(place.get_json("llms", "dra"))
    )


def _serves(service: Json) -> bool:
    return condition(service, "Ready").get("status") == "True"


def _device_class() -> Json:
    selector = f"device.driver == '{_DRIVER}' && device.attributes['{_DRIVER}'].type == 'gpu'"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "example-gpu"},
        "spec": {"extendedResourceName": nodes.GPU, "selectors": [{"cel": {"expression": selector}}]},
    }


def _resource_slice(node: str) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-gpus"},
        "spec": {
            "driver": _DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}],
        },
    }
