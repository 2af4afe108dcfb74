"""Services at random that leave accelerators on nodes full of them: nothing is lost, all comes to rest."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from holdfast.domain.service import AcceleratorOption
from tests.builders import ServiceBuilder, accelerator, service
from tests.policy.contest import RATE_RPS, Contest

KINDS = ("a", "b")
SAME = {f"{kind}-next": kind for kind in KINDS}


class Crowd:
    """Two kinds of nodes; some services leave what they run on for others there.

    `found`: breaches. Of each service the changes of its sizes are counted from `from_seconds` on.
    """

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.offered = {kind: draw.choice([2, 3, 4, 6, 8]) for kind in KINDS}
        self.free = dict(self.offered)
        services = [self._service(f"s{index}") for index in range(draw.choice([1, 2, 3, 4]))]
        cold, drain = draw.choice([0.0, 40.0, 120.0]), draw.choice([0.0, 30.0, 120.0])
        self.contest = Contest(
            self.offered,
            {builder.spec.key.name: (builder, rate, size) for builder, rate, size, _ in services},
            same=SAME,
            cold_seconds=cold,
            drain_seconds=drain,
        )
        self.edits = [(draw.randrange(200, 1000, 5), builder.spec.key.name, after) for builder, _, _, after in services]
        self.found: list[str] = []
        self.changes: Counter[str] = Counter()
        self.served: set[str] = set()

    def _service(self, name: str) -> tuple[ServiceBuilder, float, int, ServiceBuilder | None]:
        """A service, its requests per second, its replicas, and what it becomes."""
        draw, kind = self.draw, self.draw.choice(KINDS)
        size = min(self.free[kind], draw.choice([1, 2, 3, 4]))
        self.free[kind] -= size
        most = max(1, size) + draw.choice([0, 0, 1, 2, 6])
        before = service(name).with_replicas_between(min(most, draw.choice([1, 1, 2, 3])), most)
        before = before.with_priority(draw.choice([-5, 0, 0, 5])).with_accelerators(on(kind, kind))
        before = before.pinned_to(max(1, size)) if draw.random() < 0.2 else before
        left, following = replace(on(kind, kind), max_replicas=0), on(f"{kind}-next", kind)
        after = before.with_accelerators(left, following).at_generation(2) if draw.random() < 0.7 else None
        return before, draw.choice([0.5, 0.9, 1.3, 2.0]) * max(1, size) * RATE_RPS, size, after

    def run(self, seconds: float, from_seconds: float) -> Crowd:
        for second in range(0, int(seconds), 5):
            for _, name, after in (edit for edit in self.edits if edit[0] == second and edit[2]):
                self.contest.builders[name] = after or self.contest.builders[name]
            before = {name: dict(sizes) for name, sizes in self.contest.size.items()}
            self.contest.run(5.0)
            for name, sizes in before.items():
                self._watch(second, name, sizes, counts=second >= from_seconds)
        return self

    def _watch(self, second: int, name: str, before: dict[str, int], counts: bool) -> None:
        now, spec = self.contest.size[name], self.contest.builders[name].spec
        self.changes[name] += counts and now != {**now, **before}
        if sum(now.values()) > max(sum(before.values()), spec.max_replicas):
            self.found.append(f"{second} s: {name} {before} -> {now}, max {spec.max_replicas}")
        if self.contest.running(name):
            self.served.add(name)
        elif name in self.served and spec.max_replicas > 1:
            self.found.append(f"{second} s: nobody serves {name} any more, {before} -> {now}")


def on(name: str, kind: str) -> AcceleratorOption:
    return accelerator(name, node_selector=(("kind", kind),))


def judge(seed: int) -> None:
    crowd = Crowd(seed).run(4800.0, from_seconds=2400.0)
    assert crowd.found == []
    assert max(crowd.changes.values()) <= 12, crowd.changes


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_and_all_comes_to_rest(seed: int) -> None:
    judge(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 60))
def test_nothing_is_lost_in_others_either(seed: int) -> None:
    judge(seed)
