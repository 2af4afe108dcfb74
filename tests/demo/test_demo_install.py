"""What is applied, and what the load reads back."""

import pathlib
from typing import Any

import pytest
import yaml

from e2e.demo import install
from e2e.demo.install import SetUpError
from e2e.demo.scenario import Scenario
from e2e.kubectl import Kubectl

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples/chat.yaml"


def test_the_example_is_applied_as_it_is_with_an_emulated_engine() -> None:
    written: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    applied = install.manifest(EXAMPLE, Scenario(cold_start_seconds=45))
    engine = applied["spec"].pop("engine")
    written["spec"].pop("engine", None)
    assert applied == written
    assert engine["image"] == install.ENGINE_IMAGE
    assert engine["args"] == ["--cold-start=45"]


def test_what_is_compared_differs_in_name_and_plugin_alone() -> None:
    service = install.manifest(EXAMPLE, Scenario())
    other = install.without_fast_loop(service)
    assert other["metadata"].pop("name") == service["metadata"].pop("name") + "-stock"
    assert other["spec"]["engine"].pop("plugin") == "Disabled"
    assert other == service


@pytest.mark.parametrize("text", ["", "kind: Deployment\n", "- a list\n"])
def test_a_file_without_an_llmservice_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(SetUpError, match=r"wrong\.yaml holds no LLMService"):
        install.manifest(path, Scenario())


def pod(*conditions: dict[str, str]) -> dict[str, Any]:
    """Build a pod that was created at 05:00:00."""
    metadata = {"name": "chat-0", "creationTimestamp": "2026-11-21T05:00:00Z"}
    return {"metadata": metadata, "status": {"phase": "Running", "conditions": list(conditions)}}


READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-21T05:00:36Z"}


class ReadyPod(Kubectl):
    """A cluster in which every selector finds one pod, ready after 36 s."""

    def items(self, kind: str, selector: str | None = None) -> list[dict[str, Any]]:
        return [pod(READY)]


def test_one_cold_start_is_measured_on_the_replicas_that_are_ready() -> None:
    assert install.first_cold_start([pod(), pod(READY)]) == 36.0
    with pytest.raises(SetUpError, match="holdfast_service"):
        install.first_cold_start([pod()])


def test_objectives_and_address_come_from_the_stored_object() -> None:
    stored = {
        "metadata": {"name": "chat"},
        "spec": {
            "model": {"uri": "Qwen/Qwen3-8B"},
            "slo": {"ttft": "500ms", "tpot": "30ms", "e2e": "1m", "objective": "99.5%"},
            "accelerators": [{"name": "h100"}, {"name": "l40s"}],
        },
        "status": {"url": "http://chat.prod.svc:8000"},
    }
    service = install.read_service(stored, ReadyPod("prod"))
    objectives = service.objectives
    assert (objectives.ttft_seconds, objectives.tpot_seconds, objectives.e2e_seconds) == (0.5, 0.03, 60.0)
    assert objectives.share == pytest.approx(0.995)
    assert (service.url, service.served_model) == ("http://chat.prod.svc:8000", "Qwen/Qwen3-8B")
    assert (service.accelerators, service.cold_start_seconds) == (("h100", "l40s"), 36.0)
