"""The chart's README, out of its values."""

from __future__ import annotations

import yaml

from release.values import CHART, Value, readme, values

TEXT = """\
# A comment of the file.

# -- How many.
# -- Two by default.
replicas: 2
image:
  repository: "a#b"           # in your registry
  tag: ""
# -- Grouped.
settings:
  # -- Pairs | of labels.
  labels: {a: "1"}
  list:                       # opens nothing
    - {name: x}
last: null
"""


def test_values_are_told_with_their_default_and_both_kinds_of_comments() -> None:
    assert list(values(TEXT)) == [
        Value("replicas", 2, False, "How many. Two by default."),
        Value("image.repository", "a#b", False, "in your registry"),
        Value("image.tag", "", False, ""),
        Value("settings", {"labels": {"a": "1"}, "list": [{"name": "x"}]}, True, "Grouped."),
        Value("settings.labels", {"a": "1"}, False, "Pairs | of labels."),
        Value("settings.list", [{"name": "x"}], False, "opens nothing"),
        Value("last", None, False, ""),
    ]


def test_every_value_of_the_chart_is_in_its_readme() -> None:
    def leaves(node: object, path: str = "") -> set[str]:
        if isinstance(node, dict) and node:
            return {leaf for name, child in node.items() for leaf in leaves(child, f"{path}.{name}")}
        return {path.removeprefix(".")}

    told = {value.path for value in values((CHART / "values.yaml").read_text())}
    missing = {
        leaf
        for leaf in leaves(yaml.safe_load((CHART / "values.yaml").read_text()))
        if not any(leaf == path or leaf.startswith(f"{path}.") for path in told)
    }
    assert missing == set()


def test_the_charts_readme_is_what_its_values_say() -> None:
    assert (CHART / "README.md").read_text() == readme(), "make generate"
