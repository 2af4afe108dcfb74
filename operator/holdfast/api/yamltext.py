"""YAML as kubectl reads it, so that a manifest means the same to every command."""

from __future__ import annotations

from typing import Any

import yaml

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MERGE = "tag:yaml.org,2002:merge"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """PyYAML keeps to YAML 1.1, where 18:00 is 1080 in base sixty and a date is no text; to kubectl both are text."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """The tag of a node."""
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]  # its stub has no types
        if kind is yaml.ScalarNode and implicit[0] and (tag == _TIMESTAMP or (tag in _NUMBERS and ":" in value)):
            return self.DEFAULT_SCALAR_TAG
        return tag

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        """A mapping; kubectl refuses a key that stands there twice."""
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE]
        twice = next((key for place, key in enumerate(keys) if key in keys[:place]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(
                None, None, f"{twice!r} stands there twice: remove one", node.start_mark
            )
        return super().construct_mapping(node, deep)


def read_yaml(text: str) -> Any:
    """The one document of a text; raises yaml.YAMLError."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  # a SafeLoader
    except RecursionError:
        raise yaml.YAMLError("nested too deeply: check its brackets and its indentation") from None
