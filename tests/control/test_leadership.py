"""Two candidates, one Lease, and everything that can go wrong between them."""

import asyncio
from typing import Any

import pytest

from holdfast.act.api import ApiUnreachable
from holdfast.control.tick.leadership import Elector, LeadershipLost, LeaseStep, LeaseTiming, LeaseView, next_step
from tests.fakes import FakeApi, ManualClock

TIMING = LeaseTiming(duration_seconds=15, renew_deadline_seconds=10, retry_seconds=2)
LEASE = "/apis/coordination.k8s.io/v1/namespaces/ops/leases/holdfast"


@pytest.mark.parametrize(
    ("lease", "renewed_at", "now", "expected"),
    [
        pytest.param(None, None, 0, LeaseStep.ACQUIRE, id="no lease yet is acquired"),
        pytest.param(LeaseView("", "1", 0), None, 0, LeaseStep.ACQUIRE, id="a released lease is acquired at once"),
        pytest.param(LeaseView("b", "1", 0), None, 14.9, LeaseStep.WAIT, id="a lease that may be alive is waited for"),
        pytest.param(
            LeaseView("b", "1", 0), None, 15, LeaseStep.ACQUIRE, id="a lease unchanged for its duration is taken"
        ),
        pytest.param(
            LeaseView("a", "1", 0), None, 0, LeaseStep.ACQUIRE, id="our own lease from before a restart is ours"
        ),
        pytest.param(LeaseView("a", "1", 0), 0, 9.9, LeaseStep.RENEW, id="a leader renews"),
        pytest.param(LeaseView("a", "1", 0), 0, 10, LeaseStep.LOST, id="a leader that could not renew gives up first"),
        pytest.param(LeaseView("b", "1", 0), 0, 1, LeaseStep.LOST, id="a leader whose lease was taken gives up"),
        pytest.param(None, 0, 1, LeaseStep.RENEW, id="a deleted lease is written again by its leader"),
    ],
)
def test_next_step(lease: LeaseView | None, renewed_at: float | None, now: float, expected: LeaseStep) -> None:
    assert next_step(lease, "a", renewed_at, now, TIMING) is expected


def elector(api: FakeApi, clock: ManualClock, identity: str) -> Elector:
    return Elector(api, namespace="ops", name="holdfast", identity=identity, timing=TIMING, monotonic=clock, wall=clock)


async def run_round(candidate: Elector) -> None:
    await candidate._round()


async def test_of_two_candidates_only_one_leads() -> None:
    api, clock = FakeApi(), ManualClock()
    first, second = elector(api, clock, "a"), elector(api, clock, "b")
    await run_round(first)
    await run_round(second)
    assert (first.leading, second.leading) == (True, False)


async def test_a_silent_leader_is_replaced_after_the_lease_and_has_stopped_before() -> None:
    api, clock = FakeApi(), ManualClock()
    first, second = elector(api, clock, "a"), elector(api, clock, "b")
    await run_round(first)
    await run_round(second)
    clock.advance(8)
    assert not first.leading
    clock.advance(7)
    await run_round(second)
    assert second.leading
    with pytest.raises(LeadershipLost):
        await run_round(first)


async def test_a_follower_looks_again_at_the_moment_the_lease_runs_out() -> None:
    api, clock = FakeApi(), ManualClock()
    leader, follower = elector(api, clock, "a"), elector(api, clock, "b")
    await run_round(leader)
    await run_round(follower)
    assert (leader.pause_seconds(), follower.pause_seconds()) == (2, 2)
    clock.advance(14.5)
    assert follower.pause_seconds() == 0.5
    clock.advance(1)
    assert follower.pause_seconds() == 2  # it lost the race for the Lease


async def test_a_deleted_lease_is_left_to_the_leader_that_held_it() -> None:
    api, clock = FakeApi(), ManualClock()
    leader, follower = elector(api, clock, "a"), elector(api, clock, "b")
    await run_round(leader)
    await run_round(follower)
    del api.objects[LEASE]
    await run_round(follower)
    assert (leader.leading, follower.leading) == (True, False)
    clock.advance(2)
    await run_round(leader)
    await run_round(follower)
    assert (leader.leading, follower.leading) == (True, False)
    assert api.objects[LEASE]["spec"]["holderIdentity"] == "a"


async def test_a_deleted_lease_of_a_leader_that_is_gone_is_taken_when_it_would_have_run_out() -> None:
    api, clock = FakeApi(), ManualClock()
    leader, follower = elector(api, clock, "a"), elector(api, clock, "b")
    await run_round(leader)
    await run_round(follower)
    del api.objects[LEASE]
    clock.advance(14)
    await run_round(follower)
    assert not follower.leading
    assert follower.pause_seconds() == 1
    clock.advance(1)
    await run_round(follower)
    assert follower.leading


async def test_a_leader_cut_off_from_the_api_server_stops_leading() -> None:
    api, clock = FakeApi(), ManualClock()
    leader = elector(api, clock, "a")
    await run_round(leader)
    api.fail_with = ApiUnreachable("no route")
    clock.advance(4)
    await run_round(leader)
    assert leader.leading
    clock.advance(4)
    assert not leader.leading
    clock.advance(2)
    with pytest.raises(LeadershipLost):
        await run_round(leader)


async def test_a_lost_race_on_the_lease_does_not_make_a_leader() -> None:
    api, clock = FakeApi(), ManualClock()
    candidate = elector(api, clock, "a")
    api.put_object(LEASE, {"metadata": {"name": "holdfast"}, "spec": {"holderIdentity": ""}})
    body = await candidate._read()
    api.put_object(LEASE, {"metadata": {"name": "holdfast"}, "spec": {"holderIdentity": "b"}})
    assert body is not None
    await candidate._write(body, LeaseStep.ACQUIRE)
    assert not candidate.leading


async def test_a_leader_that_ends_releases_the_lease_at_once() -> None:
    api, clock = FakeApi(), ManualClock()
    leader = elector(api, clock, "a")
    task = asyncio.create_task(leader.run())
    await leader.acquired()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert api.objects[LEASE]["spec"]["holderIdentity"] == ""
    successor = elector(api, clock, "b")
    await run_round(successor)
    assert successor.leading
    assert api.objects[LEASE]["spec"]["leaseTransitions"] == 2


async def test_a_follower_never_takes_the_other_sides_clock_for_its_own() -> None:
    api, clock = FakeApi(), ManualClock()
    spec = {"holderIdentity": "b", "renewTime": "1999-01-01T00:00:00.000000Z", "leaseDurationSeconds": 15}
    api.put_object(LEASE, {"metadata": {"name": "holdfast"}, "spec": spec})
    follower = elector(api, clock, "a")
    await run_round(follower)
    assert not follower.leading


@pytest.mark.looptime
async def test_a_leader_whose_api_server_hangs_ends_at_its_deadline_and_not_with_the_request() -> None:
    class Hanging(FakeApi):
        async def request(self, method: str, path: str, **rest: Any) -> dict[str, Any]:
            if candidate.leading:
                await asyncio.Event().wait()
            return await super().request(method, path, **rest)

    clock = asyncio.get_running_loop().time
    candidate = Elector(
        Hanging(),
        namespace="ops",
        name="holdfast",
        identity="a",
        timing=TIMING,
        monotonic=clock,
        wall=clock,
    )
    with pytest.raises(LeadershipLost, match="did not answer in time"):
        await candidate.run()
    assert not candidate.leading
