"""Privileges of a whole spec, with the place where each is asked for."""

from holdfast.api.llmservice import LLMService, LLMServiceSpec
from holdfast.api.privileges import refused_privileges
from tests.api.refusals import changed


def greedy() -> LLMServiceSpec:
    """A spec that asks for the node in three places."""
    return LLMService.parse(
        changed(
            {
                "model": {"cache": {"hostPath": "/var/cache/models"}},
                "template": {"spec": {"hostPID": True}},
                "accelerators": [{"name": "h100", "template": {"spec": {"serviceAccountName": "admin"}}}],
            }
        )
    ).spec


def test_each_privilege_is_named_with_its_place() -> None:
    problems = refused_privileges(greedy(), ())
    assert [problem.split(":")[0] for problem in problems] == [
        "spec.template.spec.hostPID",
        "spec.accelerators[h100].template.spec.serviceAccountName",
        "spec.model.cache.hostPath",
    ]


def test_granted_privileges_are_no_problem() -> None:
    assert refused_privileges(greedy(), ["hostPath", "hostPID", "serviceAccountName"]) == []


def test_an_ordinary_spec_asks_for_nothing() -> None:
    assert refused_privileges(LLMService.parse(changed({})).spec, ()) == []
