"""When the queue limit of engines without the plugin follows what is measured."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from holdfast.domain.cluster import QueueLimit
from holdfast.domain.decision import QueueLimitTarget
from holdfast.domain.node_inventory import Room
from holdfast.enginemodel.replica_model import queue_limit_tokens
from holdfast.policy.sizing.proposal import Sizes
from holdfast.policy.transition.queue_limit import DIFFERS, PAUSE_SECONDS, follow
from holdfast.policy.view import View
from tests.builders import NOW, ServiceBuilder, accelerator
from tests.policy.views import CHAT, STOCK, changed, sized, stock

FAR = QueueLimit(41_000)
STEADY = sized(4)


def right(slowness: float) -> int:
    found = queue_limit_tokens(STOCK.spec, accelerator("h100"), slowness)
    assert found is not None
    return found


def followed(seen: View, sizes: Sizes) -> QueueLimitTarget | None:
    return follow(seen.state, seen.load, seen.selection, sizes)


def fast(seen: View) -> View:
    belief = replace(seen.selection.belief, fast_loop=True)
    return changed(seen, chosen=replace(seen.selection.chosen, belief=belief))


def test_a_limit_that_is_far_from_the_measured_one_is_changed_and_the_message_says_why() -> None:
    found = followed(stock(FAR), STEADY)
    assert found is not None
    assert (found.accelerator, found.limit.tokens) == ("h100", right(7.0))
    assert found.message == (
        f"h100 engines queue at most 41,000 prompt tokens; {right(7.0):,} are right by the objectives, their KV cache "
        "and their steps (7 times as long as expected); replicas restart in turn"
    )


@pytest.mark.parametrize("limit", [QueueLimit(None), QueueLimit(0)])
def test_engines_that_were_started_without_a_limit_get_one(limit: QueueLimit) -> None:
    assert followed(stock(limit, slowness=1.0), STEADY) is not None


@pytest.mark.parametrize(
    ("seen", "sizes"),
    [
        (stock(FAR, deviation=0.21), STEADY),
        (stock(FAR, looks=0), STEADY),
        (stock(QueueLimit(right(7.0))), STEADY),
        (stock(QueueLimit(math.floor(right(7.0) * DIFFERS))), STEADY),
        (stock(QueueLimit(math.ceil(right(7.0) / DIFFERS))), STEADY),
        (stock(None), STEADY),
        (fast(stock(FAR)), STEADY),
        (stock(FAR, of=STOCK.pinned_to(4)), STEADY),
        (stock(FAR, of=STOCK.recommending()), STEADY),
        (stock(FAR, placed={"rolling_out": True}), STEADY),
        (stock(FAR, placed={"paused": True}), STEADY),
        (stock(FAR, placed={"batching_before": CHAT.spec.batching}), STEADY),
        (stock(QueueLimit(41_000, int(NOW) - 3500)), STEADY),
        (stock(FAR, room=Room(0, frozenset(), 0), demand_rps=16.0), STEADY),
        (stock(FAR, room=Room(0, frozenset(), 0), demand_rps=None), STEADY),
        (stock(FAR, demand_rps=16.0), sized(5)),
        (stock(FAR), sized(4, wanted=3)),
        (stock(FAR, demand_rps=16.0, of=ServiceBuilder(replace(STOCK.spec, may_surge=False))), STEADY),
        (stock(FAR, of=CHAT.with_ttft(0.5).with_tpot(0.001)), STEADY),
    ],
    ids=[
        "unsure",
        "nothing observed",
        "right",
        "little less",
        "little more",
        "not ours",
        "plugin",
        "pinned",
        "recommend",
        "rollout",
        "paused",
        "canary",
        "within the hour",
        "short",
        "load unknown",
        "growth takes the GPU",
        "too many replicas",
        "maxSurge is 0",
        "objectives out of reach",
    ],
)
def test_the_limit_stays(seen: View, sizes: Sizes) -> None:
    assert followed(seen, sizes) is None


def test_without_a_free_gpu_the_other_replicas_must_carry_the_load() -> None:
    none = Room(0, frozenset(), STEADY)
    assert followed(stock(FAR, room=none, demand_rps=15.0), STEADY) is not None
    assert followed(stock(FAR, room=none, demand_rps=15.1), STEADY) is None


def test_a_free_gpu_is_used_even_if_capacity_is_short() -> None:
    assert followed(stock(FAR, demand_rps=1000.0), STEADY) is not None


def hours(slowness: Callable[[float], float], times: Iterable[float]) -> list[tuple[float, int]]:
    """Changes of the limit, in seconds and tokens, where each is carried out at once."""
    limit, changes = QueueLimit(41_000), []
    for at in times:
        found = followed(stock(limit, slowness(at), now=NOW + at), STEADY)
        if found is not None:
            limit = found.limit
            assert limit.tokens is not None
            changes.append((at, limit.tokens))
    return changes


def test_a_belief_that_wanders_about_a_value_changes_the_limit_once_in_a_day() -> None:
    drawn = random.Random(1)
    changes = hours(lambda _: 7.0 * math.exp(drawn.uniform(-0.15, 0.15)), range(0, 86_400, 60))
    assert len(changes) == 1


def test_a_belief_that_jumps_all_the_time_changes_the_limit_once_an_hour_at_most() -> None:
    changes = hours(lambda at: 7.0 if at // 1200 % 2 else 0.5, range(0, 43_200, 60))
    gaps = [later - sooner for (sooner, _), (later, _) in pairwise(changes)]
    assert 2 <= len(changes) <= 12
    assert min(gaps) >= PAUSE_SECONDS


def test_a_change_that_is_not_written_yet_stays_the_same_for_minutes() -> None:
    found = {followed(stock(FAR, now=NOW + at), STEADY) for at in range(1, 600, 5)}
    assert len(found) == 1
