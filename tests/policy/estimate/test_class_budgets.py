"""Each class has an error budget, and the class that is hardest to keep stands for the service."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import pytest

from holdfast.domain.decision import Decision
from holdfast.domain.engine import ExactCounts
from holdfast.domain.service import Slo
from holdfast.domain.signals import ClassTraffic, History, RateSample
from holdfast.domain.valid_traffic import judge
from holdfast.enginemodel.replica_model import StepLawModel
from holdfast.policy.decide import decide
from holdfast.policy.estimate.class_budgets import ClassState, evidence_of, hardest
from holdfast.policy.estimate.headroom import Headroom, follow
from holdfast.policy.estimate.length_mix import Lengths
from holdfast.policy.estimate.replica_capacity import Capacity, believe
from holdfast.policy.estimate.slo_budget import Budget, SloState, Verdicts, add, slo_state
from holdfast.policy.memory import Memory
from tests.builders import NOW, ServiceBuilder, ServiceView, a_snapshot, condition, replicas, service, traffic

PREMIUM = Slo(0.3, 0.03, 0.999, 3600.0, name="premium", priority=10)
BULK = Slo(30.0, 0.2, 0.9, 3600.0, name="bulk", priority=-10)
PLAIN = service().with_replicas_between(1, 10)
TICK_SECONDS = 5.0


def with_classes(*classes: Slo) -> ServiceBuilder:
    return PLAIN._spec(slo=dataclasses.replace(PLAIN.spec.slo, classes=classes))


TIERS = with_classes(PREMIUM, BULK)


def ticks(
    shares: dict[str, tuple[float, float]],
    seconds: float,
    of: ServiceBuilder = TIERS,
    memory: Memory | None = None,
    since: float = NOW,
    history: History | None = None,
) -> Iterator[tuple[Decision, Memory]]:
    """Decide every tick on these (good, bad) requests per second by class; the empty name is no class."""
    memory, interval = memory or Memory(), 10.0
    good, bad = (interval * sum(each[which] for each in shares.values()) for which in (0, 1))
    exact = ExactCounts(arrived=good + bad, good=good, bad_ttft=bad, engines=2)
    classes = tuple(ClassTraffic(name, interval * each[0], interval * each[1]) for name, each in shares.items() if name)
    looked = traffic((good + bad) / interval, exact=exact)  # type: ignore[arg-type]
    looked = dataclasses.replace(looked, classes=classes if of.spec.slo.classes else ())
    for number in range(int(seconds / TICK_SECONDS)):
        view = ServiceView(of, looked, replicas(2), history=history if not number else None)
        decisions, memory = decide(a_snapshot(view, now=since + TICK_SECONDS * number), memory)
        yield decisions[0], memory


def last(*args: object, **more: object) -> tuple[Decision, Memory]:
    *_, found = ticks(*args, **more)  # type: ignore[arg-type]
    return found


def message(decision: Decision, kind: str = "SLOMet") -> str:
    return next(each.message for each in decision.conditions if each.type == kind)


def quantile(memory: Memory) -> float:
    return memory.services[PLAIN.spec.key].demand.headroom.quantile


def test_the_class_that_burned_most_of_its_budget_is_the_service() -> None:
    decision, _ = last({"": (5.0, 0.0), "premium": (2.97, 0.03), "bulk": (1.9, 0.1)}, 1200.0)
    assert decision.slo.hardest == "premium"
    assert decision.slo.attainment == pytest.approx(0.99)
    assert decision.slo.budget_remaining == pytest.approx(1.0 - 10.0)
    assert condition(decision, "SLOMet")[0] is False
    assert "99% of requests of class premium in the last 1h were good, objective 99.9%" in message(decision)
    own, premium, bulk = decision.slo.classes
    assert (own.name, premium.name, bulk.name) == ("", "premium", "bulk")
    assert (own.attainment, own.objective) == (1.0, 0.99)
    assert bulk.attainment == pytest.approx(0.95)
    assert bulk.budget_remaining == pytest.approx(0.5)


def test_bad_requests_that_a_class_may_have_do_not_spend_the_budget_of_the_others() -> None:
    decision, _ = last({"": (5.0, 0.0), "bulk": (4.6, 0.4)}, 1200.0)
    assert condition(decision, "SLOMet") == (True, "ObjectiveMet")
    assert decision.slo.budget_remaining == pytest.approx(0.2)
    assert "of class bulk" in message(decision)


def test_requests_without_a_class_are_named_where_they_are_hardest_to_keep() -> None:
    decision, _ = last({"": (4.7, 0.3), "premium": (1.0, 0.0)}, 1200.0)
    assert (decision.slo.hardest, decision.slo.attainment) == ("", pytest.approx(0.94))
    assert "94% of requests without a class" in message(decision)


def state(name: str, remaining: float | None, bad: float, judged: float = 100.0) -> ClassState:
    """A class with 1 % that may be bad, and the requests that the last tick judged."""
    latest = Verdicts(judged - bad, bad)
    said = SloState(0.99, remaining, False, 1000.0, share=0.1)
    return ClassState(Slo(1.0, 0.05, 0.99, 3600.0, name=name), Budget(latest=latest), said)


def followed(*classes: ClassState) -> float:
    return follow(Headroom(0.5), classes, level_rps=10.0, frozen=False).quantile


def test_the_safety_level_falls_no_faster_than_the_class_that_is_hardest_to_keep_allows() -> None:
    calm, spent = state("", 1.0, 0.0), state("premium", 0.0, 0.0)
    assert followed(calm) < 0.5
    assert followed(calm, spent) == followed(spent) == 0.5
    assert followed(calm, state("premium", 0.5, 0.0)) == followed(state("premium", 0.5, 0.0))
    assert followed(state("", 0.5, 0.0), state("rare", 0.2, 0.0, judged=0.0)) == 0.5, "until one of them is judged"


def test_the_safety_level_rises_for_each_class_that_burns_its_budget() -> None:
    hardest, burns = state("premium", -3.0, 0.0), state("bulk", 0.5, 50.0)
    assert followed(hardest, burns) == followed(burns) > 0.5
    assert followed(state("", 1.0, 0.0), state("premium", -3.0, 5.0)) == followed(state("premium", -3.0, 5.0)) > 0.5


def test_a_class_with_too_few_verdicts_moves_nothing() -> None:
    assert followed(state("", 0.5, 0.0), state("rare", None, 9.0, 9.0)) == followed(state("", 0.5, 0.0))


def test_without_classes_every_decision_is_that_of_before() -> None:
    """Classes that nobody claims, with the service's own objective, change no number either."""
    loads = {"": (4.9, 0.1)}, {"": (3.0, 0.0)}, {"": (2.0, 2.0)}
    for load in loads:
        for (plain, one), (classes, other) in zip(ticks(load, 300.0, PLAIN), ticks(load, 300.0), strict=True):
            assert quantile(one) == quantile(other)
            assert plain.verdict.targets == classes.verdict.targets
            assert plain.slo.budget_remaining == classes.slo.budget_remaining


def test_requests_from_before_there_were_classes_are_the_service_s_own() -> None:
    _, memory = last({"": (4.0, 1.0)}, 1200.0, PLAIN)
    decision, _ = last({"": (4.0, 0.0), "premium": (1.0, 0.0)}, 60.0, memory=memory, since=NOW + 1200.0)
    assert (decision.slo.hardest, round(decision.slo.attainment or 0.0, 2)) == ("", 0.81)


def test_requests_in_time_do_not_hide_a_late_class_from_what_is_learned_of_the_capacity() -> None:
    urgent = Slo(0.3, 0.05, 0.99, 3600.0, name="urgent", priority=10)
    rare = dataclasses.replace(urgent, name="rare")

    def gain(**late: float) -> float:
        """What replicas carry more than the model says, at more load than it says; so many req/s of a class are bad."""
        load = {"": (29.0, 0.0), "urgent": (11.0, 0.0), "rare": (0.2, 0.0)}
        load |= {name: (load[name][0] - bad, bad) for name, bad in late.items()}
        _, memory = last(load, 900.0, with_classes(urgent, rare))
        return memory.services[PLAIN.spec.key].supply.capacity.beliefs[0].correction.gain

    assert gain() > 1.1
    assert gain(urgent=0.05) == pytest.approx(gain()), "which is no more than its objective allows"
    assert gain(urgent=0.3) == 1.0, "0.7 % of all requests, 2.7 % of its own"
    assert gain(rare=0.1) == pytest.approx(gain()), "no size is made for a class with so few requests"


def test_a_class_that_was_late_before_does_not_hide_one_that_is_late_now_and_a_thin_one_stands_for_nobody() -> None:
    urgent = Slo(0.3, 0.05, 0.99, 3600.0, name="urgent", priority=10)
    own = dataclasses.replace(urgent, name="", objective=0.95)

    def told(level_rps: float, urgent_late: float) -> tuple[float, float]:
        budgets = dict.fromkeys(("", "urgent"), Budget(window_seconds=3600.0))
        for second in range(0, 3600, 10):
            early, late = second < 600, second >= 3000
            budgets = {
                "": add(budgets[""], Verdicts(19.0, 2.0) if late else Verdicts(21.0, 0.0), float(second)),
                "urgent": add(budgets["urgent"], Verdicts(5.0, 5.0 if early else urgent_late), float(second)),
            }
        judged = ((each, budgets[each.name]) for each in (own, urgent))
        states = [ClassState(each, budget, slo_state(budget, each, 3600.0)) for each, budget in judged]
        assert hardest(states).slo.name == "urgent"
        found = evidence_of(Verdicts(24.0, 2.0), states, None, own, level_rps, 3600.0)
        return found.good, found.bad

    assert told(3.0, 0.0) == (19.0, 2.0)
    assert told(3.0, 0.2) == pytest.approx((4.2, 1.0)), "it may lose one of 100, for an objective of one of 20"
    assert told(0.5, 1.0) == (19.0, 2.0), "of the other one there are fewer than 20 in a minute"


def test_where_a_plugin_does_not_judge_requests_are_the_service_s_own() -> None:
    decision, _ = last({"": (4.0, 1.0), "premium": (0.0, 0.0)}, 1200.0)
    assert decision.slo.classes[1].attainment is None
    assert decision.slo.classes[0].judged == pytest.approx(5.0 * 1200.0, rel=0.02)


def test_after_a_restart_classes_have_the_budget_that_prometheus_remembers() -> None:
    sample = RateSample(NOW - 60.0, 60.0, 4000.0, 3000.0, 1000.0, (ClassTraffic("premium", 1000.0, 1000.0),))
    past = History((sample,), since=NOW - 7200.0)
    decision, _ = last({"": (1.0, 0.0), "premium": (0.0, 0.0)}, 10.0, history=past)
    own, premium, _ = decision.slo.classes
    assert (premium.attainment, own.attainment) == (0.5, 1.0)


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -5.0, 1e15])
def test_impossible_counts_of_a_class_are_the_service_s_own(nonsense: float) -> None:
    decision, _ = last({"": (5.0, 0.0), "premium": (1.0, 0.0)}, 600.0)
    assert decision.slo.classes[1].judged == pytest.approx(600.0, rel=0.03)
    looked = dataclasses.replace(
        traffic(6.0, exact=ExactCounts(60.0, 60.0)), classes=(ClassTraffic("premium", nonsense),)
    )  # type: ignore[arg-type]
    decisions, _ = decide(a_snapshot(ServiceView(TIERS, looked, replicas(2))), Memory())
    assert [each.judged for each in decisions[0].slo.classes] == [60.0, 0.0, 0.0]


def test_the_size_follows_the_class_that_allows_the_least_and_names_it() -> None:
    """A class that starts last and has half of the requests waits for all of them."""
    tight = dataclasses.replace(BULK, ttft_seconds=0.1, tpot_seconds=0.03)
    load = {"": (20.0, 0.0), "bulk": (20.0, 0.0)}
    plain, _ = last(load, 20.0, PLAIN)
    decision, _ = last(load, 20.0, with_classes(tight))
    assert plain.capacity is not None
    assert decision.capacity is not None
    assert decision.capacity.per_replica_rps < plain.capacity.per_replica_rps
    assert "of class bulk)" in decision.verdict.message


def test_ready_names_a_class_whose_tpot_makes_all_requests_dear() -> None:
    fast = dataclasses.replace(PREMIUM, ttft_seconds=0.5, tpot_seconds=0.012, objective=0.99)
    decision, _ = last({"": (5.0, 0.0)}, 20.0, with_classes(fast, BULK))
    assert "; tpot 12 ms of class premium is the pace of all requests: those without a class need about " in message(
        decision, "Ready"
    )
    calm, _ = last({"": (5.0, 0.0)}, 20.0)
    assert "pace of all requests" not in message(calm, "Ready")


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.045), (0.045, 0.0), (0.055, 0.009)])
def test_a_class_with_few_requests_bounds_the_rate_as_soon_as_its_share_is_material(
    before: float, after: float
) -> None:
    late = dataclasses.replace(PREMIUM, ttft_seconds=0.2, tpot_seconds=0.05, objective=0.99, priority=-10)
    spec = with_classes(late).spec

    def believed(memory: Capacity, share: float) -> Capacity:
        shares = {"": 1.0 - share, "premium": share}
        return believe(memory, spec, Lengths(), judge(traffic(1.0)), StepLawModel(), shares=shares)

    known, anew = believed(Capacity(), before), believed(Capacity(), after)
    assert believed(known, after).beliefs[0].rate == anew.beliefs[0].rate
    assert known.beliefs[0].rate_rps != pytest.approx(anew.beliefs[0].rate_rps, rel=0.05)
    assert believed(known, before + 0.001) is known, "a small change changes nothing"


def test_a_class_that_is_tighter_than_any_engine_can_serve_is_named() -> None:
    impossible = dataclasses.replace(PREMIUM, ttft_seconds=0.0001)
    decision, _ = last({"": (5.0, 0.0)}, 10.0, with_classes(impossible, BULK))
    assert condition(decision, "SLOMet") == (False, "SLOInfeasible")
    assert "meets the objectives of class premium on h100" in message(decision)
    assert "objective 99.9%; relax ttft or tpot of class premium" in message(decision)


def test_a_class_that_no_replica_helps_raises_no_safety_level() -> None:
    """Its budget burns at any size; the other classes are sized as without it."""
    impossible = dataclasses.replace(PREMIUM, ttft_seconds=0.0001, objective=0.99)
    load = {"": (2.0, 0.0), "premium": (0.0, 2.0)}
    decision, memory = last(load, 300.0, with_classes(impossible))
    assert (decision.slo.hardest, decision.slo.attainment) == ("premium", 0.0)
    assert quantile(memory) < 0.9
