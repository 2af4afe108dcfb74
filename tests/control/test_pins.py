"""A pin that no applied manifest sets: a condition and an Event at once, a Warning once it has lasted."""

from __future__ import annotations

import dataclasses
import math

from holdfast.api.conditions import ConditionType
from holdfast.api.reasons import Reason
from holdfast.control.status.pins import LASTING_SECONDS, Pins
from holdfast.domain.decision import Action, ConditionValue, Decision
from holdfast.observe.objects.cluster import ServiceParts
from tests.control.parts import decision, parts
from tests.control.test_actuator import actuator, cluster
from tests.fakes import FakeApi

OUTSIDE = str(Reason.PINNED_OUTSIDE_MANIFEST)


def pinned(by: str = "kustomize-controller", generation: int = 1) -> ServiceParts:
    part = parts(sizes={"h100": 1}, ready={"h100": 1})
    spec = dataclasses.replace(part.spec, pinned_replicas=1, pin_lacked_by=by, generation=generation)
    return dataclasses.replace(part, spec=spec)


def held(part: ServiceParts) -> Decision:
    reason = Reason.PINNED_OUTSIDE_MANIFEST if part.spec.pin_lacked_by else Reason.PINNED
    value = ConditionValue(ConditionType.SCALING_ACTIVE, False, reason, "spec.replicas pins the size at 1")
    return dataclasses.replace(decision(part, Action.HOLD, h100=1), conditions=(value,))


def events(api: FakeApi) -> list[tuple[str, str]]:
    found = [body for path, body in api.objects.items() if "/events/" in path and body["reason"] == OUTSIDE]
    return [(body["type"], body["message"]) for body in found]


async def test_a_pin_is_told_at_once_and_warned_of_once_after_ten_minutes() -> None:
    api, part = cluster(), pinned()
    acting, hold = actuator(api), held(part)
    known = pinned(by="")
    await acting.act([known], [held(known)], [], [], now=-5.0)
    for now in (0.0, 5.0, LASTING_SECONDS - 5.0):
        await acting.act([part], [hold], [], [], now=now)
    assert [kind for kind, _ in events(api)] == ["Normal"]
    for now in (LASTING_SECONDS, LASTING_SECONDS + 5.0, 2 * LASTING_SECONDS, 9 * LASTING_SECONDS):
        await acting.act([part], [hold], [], [], now=now)
    assert [kind for kind, _ in events(api)] == ["Normal", "Warning"]
    assert events(api)[1][1] == "for 10 minutes: spec.replicas pins the size at 1"


async def test_the_warning_of_one_pin_is_posted_once_though_another_leader_takes_over() -> None:
    api, part = cluster(), pinned()
    for start in (0.0, 1000.0):
        acting = actuator(api)
        for now in (start, start + LASTING_SECONDS):
            await acting.act([part], [held(part)], [], [], now=now)
    assert [kind for kind, _ in events(api)].count("Warning") == 1


def test_each_pin_has_its_own_ten_minutes() -> None:
    pins, first = Pins(), pinned().spec
    assert pins.due_at(first, 100.0) == 100.0 + LASTING_SECONDS
    assert pins.due_at(first, 300.0) == 100.0 + LASTING_SECONDS
    assert pins.due_at(pinned(generation=2).spec, 400.0) == 400.0 + LASTING_SECONDS
    pins.warned(pinned(generation=2).spec)
    assert pins.due_at(pinned(generation=2).spec, 9999.0) == math.inf
    assert pins.due_at(pinned(generation=3).spec, 500.0) == 500.0 + LASTING_SECONDS


def test_a_pin_that_goes_into_the_manifest_is_not_warned_of() -> None:
    pins = Pins()
    assert pins.due_at(pinned().spec, 0.0) == LASTING_SECONDS
    assert pins.due_at(pinned(by="").spec, 300.0) == math.inf
    assert pins.due_at(pinned().spec, 400.0) == 400.0 + LASTING_SECONDS
    pins.forget([pinned().spec.key])
    assert pins.due_at(pinned().spec, 900.0) == 900.0 + LASTING_SECONDS
