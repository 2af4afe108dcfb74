"""Copies of engine images for isolated clusters."""

from __future__ import annotations

import pytest

from holdfast.api.images import copied_image, copies_by_image, with_copies
from holdfast.api.llmservice import DEFAULT_ENGINE_IMAGE
from holdfast.rendered.declared import engine_image
from tests.control.parts import llmservice

COPY = "registry.local:5000/team/vllm-openai:v0.32.0"


def test_engines_use_the_copies_and_other_images_stay() -> None:
    accelerators = [{"name": "h100"}, {"name": "mi300x", "image": "rocm/vllm:v1"}, {"name": "l40s", "image": "own:1"}]
    service = llmservice(accelerators=accelerators)
    copied = with_copies(service, {DEFAULT_ENGINE_IMAGE: COPY, "rocm/vllm:v1": "registry.local/rocm:v1"})
    images = [engine_image(copied.spec, each) for each in copied.spec.accelerators]
    assert images == [COPY, "registry.local/rocm:v1", "own:1"]
    assert service.spec.engine.image == DEFAULT_ENGINE_IMAGE


@pytest.mark.parametrize("copies", [{}, {"other:1": COPY}])
def test_a_service_without_such_an_image_is_the_identical_one(copies: dict[str, str]) -> None:
    service = llmservice()
    assert with_copies(service, copies) is service


@pytest.mark.parametrize("text", ["", "=", "a", "a=", "=b", "a=b c", "a =b", "a=b=c", "a=b\n", "a=\x7f"])
def test_what_names_no_copy_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="must be IMAGE=COPY, such as"):
        copied_image(text)


def test_an_image_with_two_copies_is_refused() -> None:
    assert copies_by_image(["a=b", "c=b"]) == {"a": "b", "c": "b"}
    with pytest.raises(ValueError, match="image a is named twice"):
        copies_by_image(["a=b", "a=c"])
