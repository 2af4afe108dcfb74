"""`python -m release.values`: the chart's README, out of its values.yaml."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from release.wheels import REPOSITORY

CHART = REPOSITORY / "charts" / "holdfast"
_LINE = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z]\w*):(?P<rest>.*)$")
_HEAD = """\
<!-- Generated from values.yaml by `make generate`. -->
# Holdfast's chart

{description}.

```sh
helm upgrade --install holdfast oci://REGISTRY/charts/holdfast --version VERSION \\
  --namespace holdfast-system --create-namespace --set settings.prometheusUrl=http://prometheus.monitoring:9090
```

Kubernetes {kubernetes}. `--set prometheus.enabled=true` in place of the address installs a small Prometheus for trials.
A misspelt value is refused. CRDs are upgraded with the release, and they and the LLMServices stay after an uninstall.

## Values

| value | default | meaning |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Value:
    """One value of the chart: its path with dots, and what its comments say; `opens` where others are below it."""

    path: str
    default: Any
    opens: bool
    meaning: str


def readme() -> str:
    """The text of the chart's README."""
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    head = _HEAD.format(description=about["description"], kubernetes=about["kubeVersion"].removesuffix("-0"))
    return head + "".join(_row(value) for value in values((CHART / "values.yaml").read_text()))


def _row(value: Value) -> str:
    default = "" if value.opens else f"`{json.dumps(value.default)}`"
    return f"| `{value.path}` | {_cell(default)} | {_cell(value.meaning)} |\n"


def _cell(text: str) -> str:
    return re.sub(r"[|*]", r"\\\g<0>", text)


def values(text: str) -> Iterator[Value]:
    """The values in the order of the file; a map written in one line, or without comments of its own, is one value."""
    defaults = yaml.safe_load(text)
    lines = text.splitlines()
    comment: list[str] = []
    path: list[tuple[int, str]] = []
    for number, line in enumerate(lines):
        stripped = line.strip()
        if stripped.startswith("# -- "):
            comment.append(stripped.removeprefix("# -- "))
        elif found := _LINE.match(line):
            indent = len(found["indent"])
            path = [*(step for step in path if step[0] < indent), (indent, found["key"])]
            names = [name for _, name in path]
            trailing = _trailing(found["rest"])
            told = " ".join([*comment, *([trailing] if trailing else [])])
            opens = _opens(lines, number, indent)
            if told or not opens:
                yield Value(".".join(names), _default(defaults, names), opens, told)
            comment = []
        elif not stripped:
            comment = []


def _opens(lines: list[str], number: int, indent: int) -> bool:
    """Whether the key on this line holds further keys on the lines below."""
    following = next((line for line in lines[number + 1 :] if line.strip() and not line.strip().startswith("#")), "")
    found = _LINE.match(following)
    return found is not None and len(found["indent"]) > indent


def _default(defaults: Any, names: list[str]) -> Any:
    for name in names:
        defaults = defaults[name]
    return defaults


def _trailing(rest: str) -> str:
    found = re.search(r"\s#\s(.*)$", rest)
    return found.group(1) if found else ""


if __name__ == "__main__":
    sys.stdout.write(readme())
