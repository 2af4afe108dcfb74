"""Adapters that clients load into one replica are missing on the others: Ready says so, and what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.render import RenderContext, remarks
from tests.render.scenes import service

VARIABLE = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"


def said(*accelerators: dict[str, Any], **spec: Any) -> tuple[str, ...]:
    listed = accelerators or ({"name": "h100"},)
    of = service({**spec, "accelerators": list(listed)})
    return remarks(of, [each["name"] for each in listed], RenderContext())


def variable(value: Any) -> list[dict[str, Any]]:
    return [{"name": VARIABLE, "value": value}]


def overlay(value: Any, container: str = "vllm") -> dict[str, Any]:
    return {"spec": {"containers": [{"name": container, "env": variable(value)}]}}


@pytest.mark.parametrize("value", ["1", "true", "True", " TRUE "])
@pytest.mark.parametrize("place", ["engine", "accelerator", "template"])
def test_adapters_loaded_at_run_time_are_said_to_be_missing_on_new_replicas(value: str, place: str) -> None:
    spec = {
        "engine": lambda: said(engine={"env": variable(value)}),
        "accelerator": lambda: said({"name": "h100", "env": variable(value)}),
        "template": lambda: said(template=overlay(value)),
    }
    (remark,) = spec[place]()
    assert remark.startswith(f"{VARIABLE} is set, but an adapter that is loaded at run time is missing on all other")
    assert "model.lora.adapters" in remark


@pytest.mark.parametrize("value", ["0", "false", "", "yes", "2"])
def test_a_value_that_vllm_takes_for_off_is_not_remarked_on(value: str) -> None:
    assert not said(engine={"env": variable(value)})


def test_the_variable_of_another_container_is_not_the_engines() -> None:
    assert not said(template=overlay("1", "router"))


def test_the_accelerators_own_value_counts_as_in_its_pods() -> None:
    assert not said({"name": "h100", "env": variable("0")}, engine={"env": variable("1")})
    assert not said({"name": "h100", "template": overlay("0")}, engine={"env": variable("1")})


def test_one_sentence_is_enough_for_several_accelerators() -> None:
    assert len(said({"name": "h100"}, {"name": "a100"}, engine={"env": variable("1")})) == 1


def test_a_value_from_elsewhere_is_not_guessed() -> None:
    field = {"name": VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    assert not said(engine={"env": [field]})
