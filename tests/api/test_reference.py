"""docs/api.md names every field and every reason."""

from pathlib import Path

import pytest

from holdfast.api.conditions import ConditionType
from holdfast.api.reasons import Reason
from tests.api.test_crd import BENCHMARK_NODES, IN_PODS, NODES

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "api.md").read_text()
BENCHMARKS = (DOCS / "llmbenchmark.md").read_text()
FIELDS = [path for path in NODES if path.count(".") > 1 and not IN_PODS.match(path)]


@pytest.mark.parametrize("path", [path for path in FIELDS if not path.endswith("[]")])
def test_the_reference_names_every_field(path: str) -> None:
    parent, _, leaf = path.removeprefix(".spec.").removeprefix(".status.").rpartition(".")
    whole = f"{parent}.{leaf}".lstrip(".")
    names = (f"`{leaf}`", f"`.{leaf}`", f"`{whole}`", f"`{whole}.", f"`{whole}[]")
    documented_as_a_whole = path.startswith((".status.conditions[]", ".status.recommendation"))
    assert documented_as_a_whole or any(name in REFERENCE for name in names)


LEAVES = [
    path
    for path, node in BENCHMARK_NODES.items()
    if path.count(".") > 1 and not IN_PODS.match(path) and ("properties" not in node or path == ".spec.resources")
]


@pytest.mark.parametrize("path", [path for path in LEAVES if not path.endswith("[]") and ".conditions" not in path])
def test_the_reference_of_benchmarks_names_every_field(path: str) -> None:
    whole = path.removeprefix(".spec").removeprefix(".status").lstrip(".")
    leaf = whole.rpartition(".")[2]
    assert any(f"`{name}" in BENCHMARKS for name in (leaf, f".{leaf}", whole)), path


@pytest.mark.parametrize("reason", list(Reason))
def test_the_reference_gives_the_meaning_of_every_reason(reason: Reason) -> None:
    assert f"| {reason} | {reason.meaning} |" in REFERENCE


@pytest.mark.parametrize("kind", list(ConditionType))
def test_the_reference_explains_every_condition(kind: ConditionType) -> None:
    assert f"| {kind} |" in REFERENCE


def test_a_reason_is_one_word_with_one_sentence() -> None:
    for reason in Reason:
        assert reason.isalpha()
        assert reason[0].isupper()
        assert reason.meaning.endswith(".")
    assert len({reason.meaning for reason in Reason}) == len(Reason)
