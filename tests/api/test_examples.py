"""The examples are objects that can be applied, and together they show every field."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.api import crd
from holdfast.api.llmservice import LLMService
from tests.api.test_crd import IN_PODS

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["minimal", "chat", "accelerators", "office-hours", "scale-to-zero", "router", "full"])
def test_an_example_is_a_valid_object_named_after_its_file(name: str) -> None:
    body = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    assert LLMService.parse(body).metadata.name == name


def test_the_trial_is_a_service_and_a_load_of_one_image() -> None:
    service, load = yaml.safe_load_all((EXAMPLES / "no-gpu/trial.yaml").read_text())
    assert LLMService.parse(service).metadata.name == "trial"
    pod = load["spec"]["template"]["spec"]
    images = {each["image"] for each in (*pod["initContainers"], *pod["containers"])}
    assert images == {service["spec"]["engine"]["image"]}


def test_the_load_of_the_trial_ends_once_and_well_whatever_it_measured() -> None:
    _, load = yaml.safe_load_all((EXAMPLES / "no-gpu/trial.yaml").read_text())
    pod = load["spec"]["template"]["spec"]
    assert (load["kind"], load["spec"]["backoffLimit"], pod["restartPolicy"]) == ("Job", 0, "Never")
    (bench,) = pod["containers"]
    assert "--summary=/dev/termination-log" in bench["args"]  # its exit status is then 0, the objective missed or not


def test_the_full_example_shows_every_field() -> None:
    spec = yaml.safe_load((EXAMPLES / "full.yaml").read_text())["spec"]
    schema = crd.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    # One object shows one cache; the others stand in a comment.
    # A target stands in for the fields that say how engines run, and a router for an InferencePool.
    assert unshown(schema, spec) == ["target", "model.cache.hostPath", "model.cache.emptyDir", "router", "prefill"]
    shown = yaml.safe_load((EXAMPLES / "router.yaml").read_text())["spec"]["router"]
    assert unshown(schema["properties"]["router"], shown, "router") == []


def unshown(schema: dict[str, Any], shown: Any, path: str = "") -> list[str]:
    """Paths of the schema's fields that the example leaves out."""
    if IN_PODS.match(f".spec.{path}."):
        return []
    if schema.get("type") == "array":
        items = {key: value for item in shown for key, value in item.items()} if isinstance(shown[0], dict) else None
        return unshown(schema["items"], items, f"{path}[]")
    missing: list[str] = []
    for name, field in schema.get("properties", {}).items():
        place = f"{path}.{name}".lstrip(".")
        missing += unshown(field, shown[name], place) if name in shown else [place]
    return missing
