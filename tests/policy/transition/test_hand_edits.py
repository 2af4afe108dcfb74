"""Sizes and images that people set by hand on our Deployments, on nodes without a free GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from holdfast.domain.snapshot import Snapshot
from holdfast.policy.settings import PolicySettings
from tests.builders import accelerator, service
from tests.policy.fluid import FluidCluster

PROVISIONING_SECONDS = PolicySettings().provisioning_seconds


@dataclass
class Edited(FluidCluster):
    """Whether a rollout is under way, which ends only where each pod finds a node."""

    rolling_out: bool = False

    def snapshot(self) -> Snapshot:
        seen = super().snapshot()
        (one,) = seen.services
        rolling = tuple(replace(each, rolling_out=self.rolling_out) for each in one.placements)
        return replace(seen, services=(replace(one, placements=rolling),))

    def scale(self, accelerator: str, size: int) -> None:
        """Set the size of a Deployment, as kubectl does."""
        for _ in range(size - self.size[accelerator]):
            self._start(accelerator)
        self.size[accelerator] = size


@pytest.mark.parametrize("free", [0, 1, 2])
@pytest.mark.parametrize("rolling_out", [False, True])
def test_pods_that_find_no_gpu_are_not_wanted_for_longer_than_a_node_takes(free: int, rolling_out: bool) -> None:
    one = service().with_accelerators(accelerator("h100"))
    world = Edited(one, lambda at: 12.0, {"h100": 8.9}, cold_start=60.0, gpus={"h100": 2 + free})
    world.run(3600)
    assert world.replicas() == 2
    world.rolling_out = rolling_out
    world.scale("h100", 5)
    world.run(PROVISIONING_SECONDS + 30.0)
    assert world.replicas() <= 2 + free
