"""Engine images under other names: copies in a registry that the nodes of an isolated cluster can reach."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from holdfast.api.llmservice import LLMService

_REFERENCE = re.compile(r"[!-<>-~]+")


def copied_image(text: str) -> str:
    """Check one copy, such as `vllm/vllm-openai:v0.32.0=registry.local/vllm-openai:v0.32.0`; ValueError otherwise."""
    image, _, copy = text.partition("=")
    if not _REFERENCE.fullmatch(image) or not _REFERENCE.fullmatch(copy):
        remedy = "such as vllm/vllm-openai:v0.32.0=registry.local/vllm-openai:v0.32.0"
        raise ValueError(f"must be IMAGE=COPY, {remedy}")
    return text


def copies_by_image(texts: Iterable[str]) -> dict[str, str]:
    """Return checked copies by image; ValueError for an image that is named twice."""
    found: dict[str, str] = {}
    for image, _, copy in (text.partition("=") for text in texts):
        if image in found:
            raise ValueError(f"image {image} is named twice; keep one of its copies")
        found[image] = copy
    return found


def with_copies(service: LLMService, copies: Mapping[str, str]) -> LLMService:
    """Return the service with the copies of its engine images; the identical service where it uses none of them."""
    spec = service.spec
    engine = spec.engine.model_copy(update={"image": copies.get(spec.engine.image, spec.engine.image)})
    accelerators = tuple(
        each.model_copy(update={"image": copies.get(each.image, each.image)}) if each.image else each
        for each in spec.accelerators
    )
    if engine == spec.engine and accelerators == spec.accelerators:
        return service
    return service.model_copy(update={"spec": spec.model_copy(update={"engine": engine, "accelerators": accelerators})})
