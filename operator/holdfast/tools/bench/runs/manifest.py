"""The LLMService of a manifest that a command was given with -f."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from holdfast.api.llmservice import KIND, InvalidLLMService, LLMService
from holdfast.api.yamltext import read_yaml
from holdfast.domain.service import ServiceSpec
from holdfast.observe.objects.spec import to_spec
from holdfast.twin.scenarios.inputs import BadInput


def read_service(path: Path) -> ServiceSpec:
    """What decisions need of it; BadInput where there is none."""
    return to_spec(read_manifest(path))


def read_manifest(path: Path) -> LLMService:
    """The LLMService with accelerators of a file; BadInput where there is none."""
    try:
        content = read_yaml(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise BadInput(f"-f {path}: cannot be read: {problem.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise BadInput(f"-f {path}: no valid YAML: {_line(problem)}") from None
    if not isinstance(content, dict):
        raise BadInput(f"-f {path}: {'empty' if content is None else 'no mapping'}; name a manifest of an {KIND}")
    if content.get("kind", KIND) != KIND:
        raise BadInput(f"-f {path}: kind {content['kind']!r}; name a manifest of an {KIND}")
    service = parsed_service(content, f"-f {path}")
    if not service.spec.accelerators:
        raise BadInput(
            f"-f {path}: this {KIND} has a target, and so neither model nor accelerators: name a manifest with both, "
            "or give options in place of -f (plan: --model and --accelerator; tune: --url and --slo)"
        )
    return service


def parsed_service(content: dict[str, Any], where: str) -> LLMService:
    """The LLMService of a manifest; BadInput names `where` it is from and its invalid fields."""
    try:
        return LLMService.parse(content)
    except InvalidLLMService as problem:
        raise BadInput(f"{where}: invalid {KIND}: {_line(problem)}; correct these fields") from None


def _line(problem: Exception) -> str:
    return " ".join(str(problem).split())
