"""Who may size a Deployment, by what the API server has of it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.observe.adoption.adoption import TargetState, adopted
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.observe.objects.sizers import aim_of, owner_of
from tests.observe.foreign import deployment, owned, service

DEPLOYMENT = {"kind": "Deployment", "name": "web"}


@pytest.mark.parametrize(
    ("aim", "name"),
    [
        ({"apiVersion": "apps/v1", **DEPLOYMENT}, "web"),
        ({"apiVersion": "apps/v1beta2", **DEPLOYMENT}, "web"),
        ({"apiVersion": "extensions/v1beta1", **DEPLOYMENT}, "web"),
        ({"name": "web"}, "web"),  # KEDA's defaults
        (DEPLOYMENT, "web"),
        ({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web"}, ""),
        ({"apiVersion": "apps.kruise.io/v1alpha1", **DEPLOYMENT}, ""),
        ({"apiVersion": "holdfast.dev/v1alpha1", "kind": "LLMService", "name": "web"}, ""),
        ({"apiVersion": "v1", **DEPLOYMENT}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_an_autoscaler_aims_at_a_deployment_of_kubernetes_or_at_something_else(aim: Any, name: str) -> None:
    assert aim_of({"spec": {"scaleTargetRef": aim}}) == name


def test_an_autoscaler_without_a_spec_aims_at_nothing() -> None:
    assert aim_of({}) == aim_of({"spec": None}) == ""


def test_who_made_a_deployment_may_size_it_unless_it_says_that_others_do() -> None:
    left = {"serving.kserve.io/autoscalerClass": "external"}
    assert owner_of(owned()) == "InferenceService chat"
    assert owner_of(owned(**{"serving.kserve.io/autoscalerClass": "hpa"})) == "InferenceService chat"
    assert owner_of(owned(controller=False)) == owner_of(owned(**left)) == owner_of(deployment()) == ""


def test_of_a_target_with_an_owner_sizes_are_only_recommended_and_an_autoscaler_is_named_before_it() -> None:
    for state, named, is_owned in (
        (TargetState(owned()), "InferenceService chat", True),
        (TargetState(owned(), autoscaler="HorizontalPodAutoscaler web"), "HorizontalPodAutoscaler web", False),
    ):
        part = adopted(service(mode="Auto"), state, {})
        assert isinstance(part, ServiceParts)
        assert part.spec.recommend_only
        assert part.adoption is not None
        assert (part.adoption.autoscaler, part.adoption.is_owned) == (named, is_owned)


def test_who_sized_a_target_last_is_known() -> None:
    body = deployment()
    fields = {"f:spec": {"f:replicas": {}}}
    body["metadata"]["managedFields"] = [{"manager": "helm", "operation": "Update", "fieldsV1": fields}]
    part = adopted(service(mode="Auto"), TargetState(body), {})
    assert isinstance(part, ServiceParts)
    assert part.placements[0].sized_by == "helm"
    assert not part.spec.recommend_only
