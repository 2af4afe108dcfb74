"""What the chart renders is what is installed, and an uninstall leaves what README says and nothing else.

In a cluster of its own: python -m e2e.cluster run -- python -m pytest e2e/test_leftovers.py
"""

from __future__ import annotations

import os
import subprocess

import pytest

from e2e import stack
from e2e.kubectl import Kubectl

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", autouse=True)
def installed(cluster: str) -> None:
    stack.uninstall()
    stack.install()


def test_a_diff_of_the_rendered_chart_is_empty() -> None:
    found = subprocess.run(
        ["kubectl", "diff", "-f", "-"],
        input=stack.rendered("--skip-tests"),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_an_uninstall_takes_the_lease_along() -> None:
    place = Kubectl(stack.NAMESPACE)
    (lease,) = place.items("leases")
    assert lease["spec"]["holderIdentity"]
    stack.uninstall()
    place.wait_until(lambda: not place.items("pods"), 60, "the pods to go")
    assert place.items("leases") == []
