"""Somebody else's Deployment gets smaller on evidence only, once Holdfast sets its size."""

from __future__ import annotations

import pytest

from tests.builders import ServiceBuilder, service
from tests.policy.fluid import FluidCluster, steps

FOREIGN = service().adopting().with_replicas_between(1, 10)
IDLE_SECONDS, HOLD_SECONDS = 600.0, 75.0
"""The idle time that is the default, and a lead time and a drain."""


class Adopted(FluidCluster):
    """A Deployment that has so many replicas, and is only recommended to at first."""

    @classmethod
    def of(cls, size: int, rate_rps: float, seconds: float) -> Adopted:
        found = cls(FOREIGN.recommending(), steps((0, rate_rps)), {"h100": 8.9})
        found.size["h100"] = size
        for _ in range(size):
            found._start("h100")
        found.run(seconds)
        return found

    def set_auto(self, of: ServiceBuilder = FOREIGN) -> None:
        self.with_spec(of)

    def sizes_for(self, seconds: float) -> set[int]:
        """The sizes of so long a time."""
        found = set()
        for _ in range(round(seconds / self.tick)):
            self.run(self.tick)
            found.add(self.replicas())
        return found


@pytest.mark.parametrize("seconds", [60.0, 3600.0], ids=["adopted lately", "recommended to for an hour"])
def test_without_a_request_the_first_move_down_waits_for_the_idle_time(seconds: float) -> None:
    cluster = Adopted.of(3, 0.0, seconds)
    cluster.set_auto()
    assert cluster.sizes_for(IDLE_SECONDS - 5.0) == {3}
    assert "what a replica carries is not measured yet" in cluster.last().verdict.message
    cluster.run(10.0)
    assert cluster.replicas() == 1


def test_a_service_that_starts_with_auto_waits_as_well() -> None:
    cluster = Adopted.of(3, 0.0, 0.0)
    cluster.set_auto()
    assert cluster.sizes_for(IDLE_SECONDS) == {3}


def test_under_a_load_the_first_move_down_waits_for_the_hold_time_alone() -> None:
    cluster = Adopted.of(5, 8.0, 1800.0)
    assert cluster.last().recommendation.replicas < 5  # type: ignore[union-attr]
    cluster.set_auto()
    assert cluster.sizes_for(HOLD_SECONDS - 5.0) == {5}
    cluster.run(HOLD_SECONDS)
    assert 1 < cluster.replicas() < 5


def test_an_idle_deployment_grows_at_once() -> None:
    cluster = Adopted.of(1, 30.0, 600.0)
    cluster.set_auto()
    cluster.run(5.0)
    assert cluster.replicas() > 1


def test_bounds_that_people_set_do_not_wait() -> None:
    cluster = Adopted.of(5, 0.0, 60.0)
    cluster.set_auto(FOREIGN.with_replicas_between(1, 2))
    cluster.run(5.0)
    assert cluster.replicas() == 2


def test_a_later_move_down_does_not_wait_again() -> None:
    cluster = Adopted.of(3, 0.0, 60.0)
    cluster.set_auto()
    cluster.run(IDLE_SECONDS + 60.0)
    cluster.size["h100"] = 2
    cluster._start("h100")
    cluster.run(60.0)
    assert cluster.replicas() == 1


def test_a_service_with_engines_of_its_own_does_not_wait() -> None:
    cluster = Adopted.of(3, 0.0, 600.0)
    cluster.builder = service().recommending().with_replicas_between(1, 10)
    cluster.run(60.0)
    cluster.set_auto(service().with_replicas_between(1, 10))
    cluster.run(10.0)
    assert cluster.replicas() == 1
