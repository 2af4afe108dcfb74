"""The LLMService of a manifest that a command was given with -f."""

from __future__ import annotations

from pathlib import Path

import yaml

from holdfast.api.llmservice import KIND, InvalidLLMService, LLMService
from holdfast.api.yamltext import read_yaml
from holdfast.domain.service import ServiceSpec
from holdfast.observe.spec import to_spec
from holdfast.twin.scenario import BadInput


def read_service(path: Path) -> ServiceSpec:
    """What decisions need of it; BadInput where there is none."""
    try:
        content = read_yaml(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise BadInput(f"-f {path}: {'empty' if content is None else 'no mapping'}: name a manifest of an {KIND}")
        if content.get("kind", KIND) != KIND:
            raise BadInput(f"-f {path}: kind {content['kind']!r}: give the manifest of an {KIND}")
        return to_spec(LLMService.parse(content))
    except (OSError, yaml.YAMLError, UnicodeDecodeError, InvalidLLMService) as problem:
        told = " ".join(str(problem).split())
        raise BadInput(f"-f {path}: no {KIND}: {told}: name a manifest that holds one") from None
