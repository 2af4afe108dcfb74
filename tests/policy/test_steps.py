"""Each service passes each step of a tick once, also where several services compete for the same GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.policy import decide, steps
from tests.builders import ServiceBuilder, accelerator, service
from tests.policy.contest import Contest

STEPS = ("learn", "propose", "transition", "explain")


@contextmanager
def counted() -> Iterator[Counter[tuple[str, str]]]:
    """Count how often each step is asked about each service, and how often GPUs are allocated."""
    calls: Counter[tuple[str, str]] = Counter()

    def counting(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            calls[name, "all" if name == "allocate" else name_of(given[0])] += 1
            return step(*given, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(steps, name, counting(name, getattr(steps, name)))
        patch.setattr(decide, "allocate", counting("allocate", decide.allocate))
        yield calls


def name_of(first: Any) -> str:
    """The service that a step is asked about: its snapshot, its state, or its plan."""
    shown = first.view.state if isinstance(first, steps.ServicePlan) else first
    return str(getattr(shown, "service", shown).spec.key.name)


def on(service_name: str, *names: str) -> ServiceBuilder:
    return service(service_name).with_accelerators(*(accelerator(n, node_selector=(("kind", n),)) for n in names))


def test_each_service_passes_each_step_exactly_once_per_tick() -> None:
    builders = {name: on(name, "h100", "l40s") for name in ("batch", "chat", "code")}
    contest = Contest({"h100": 3, "l40s": 4}, {name: (builder, 9.0, 1) for name, builder in builders.items()})
    with_allocation = 0
    for _ in range(120):
        with counted() as calls:
            contest.run(5.0)
        passed = {name for step, name in calls if step == "learn"}
        assert calls == {("allocate", "all"): 1, **{(step, name): 1 for step in STEPS for name in passed}}
        with_allocation += sum(known.allocation is not None for known in contest.memory.services.values())
    assert with_allocation, "GPUs were never short, so that nobody was decided on with an allocation"


def test_a_service_of_which_nothing_has_changed_passes_no_step() -> None:
    contest = Contest(4, {"chat": (on("chat", "h100"), 6.0, 2)})
    contest.run(600.0)
    with counted() as first:
        contest.run(5.0)
    contest.now -= 4.0  # within the same scrape interval
    with counted() as second:
        contest.run(5.0)
    assert set(first) == {("allocate", "all"), *((step, "chat") for step in STEPS)}
    assert set(second) == {("allocate", "all")}
