"""Fixtures for tests that run inside ``python -m e2e.cluster run -- ...``."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from e2e import stack
from e2e.cluster.provider import NEEDS_OWN, OWN
from e2e.kubectl import Kubectl

_REMEDY = "this test needs a cluster: python -m e2e.cluster run -- python -m pytest e2e -m cluster"


@pytest.fixture(scope="session")
def cluster() -> str:
    """The kind of cluster the tests run in; fails with the remedy outside of one."""
    provider = os.environ.get("HOLDFAST_CLUSTER")
    if not provider or not os.environ.get("KUBECONFIG"):
        pytest.fail(_REMEDY, pytrace=False)
    if provider != OWN:
        pytest.fail(NEEDS_OWN, pytrace=False)
    return provider


@pytest.fixture(scope="session")
def kubectl(cluster: str) -> Kubectl:
    """Kubectl in the default namespace."""
    return Kubectl()


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[Kubectl]:
    """Kubectl in a namespace of the test's own, which is deleted afterwards."""
    name = f"test-{secrets.token_hex(4)}"
    yield _namespace(kubectl, name)
    kubectl.delete("namespace", name, wait=False)


@pytest.fixture(scope="session")
def operator(cluster: str) -> None:
    """Two operators and a Prometheus from the chart, quick enough for tests, on a node that looks like sixteen L40S.

    An accelerator counts as unavailable after a pod has waited 15 s for a node, and services rest as soon as they may.
    """
    stack.offer_gpus(16, stack.L40S)
    lease = f"{stack.LEASE_SECONDS:g}s"
    settings = {"tick": "2s", "nodeProvisioningTime": "15s", "idleTime": "20s", "leaseDuration": lease}
    stack.install(**{f"settings.{name}": value for name, value in settings.items()})


@pytest.fixture(scope="session")
def api(kubectl: Kubectl) -> Kubectl:
    """Kubectl in a cluster that knows LLMServices and LLMBenchmarks."""
    stack.install_types()
    return kubectl


@pytest.fixture(scope="module")
def place(kubectl: Kubectl) -> Iterator[Kubectl]:
    """Kubectl in a namespace that the tests of one file share."""
    name = f"test-{secrets.token_hex(4)}"
    yield _namespace(kubectl, name)
    kubectl.delete("namespace", name, wait=False)


def _namespace(kubectl: Kubectl, name: str) -> Kubectl:
    """A namespace in which pods can be made: a bare one is refused while its ServiceAccount is not there."""
    kubectl.run("create", "namespace", name)
    place = Kubectl(name)
    place.wait_until(lambda: bool(place.items("serviceaccounts")), 60, "the default ServiceAccount")
    return place
