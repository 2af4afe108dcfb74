"""The recipes of CONTRIBUTING.md, made in a copy of the tree: they fail where the page says so, and pass at the end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
COPIED = ("operator", "tests", "docs", "CHANGELOG.md")
# Machine code is bound to its folder; bytecode that another process is writing has a name of its own for that time.
LEFT_OUT = shutil.ignore_patterns("numba-*", "*.pyc.*", "*.egg-info")
SOURCES = ("tests/", "docs/", "e2e/", "CHANGELOG")

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Edit:
    """In this file, `added` is put behind (or, with `before`, in front of) the only place with this text."""

    file: str
    text: str
    added: str
    before: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """The edits under a heading, the tests that then run, and after how many edits which of them fails by which word.

    `other` are files of the page's table that the example needs no change of.
    """

    heading: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    failures: tuple[tuple[int, str], ...]
    other: tuple[str, ...] = ()


GUARD = Recipe(
    "### A guard",
    (
        Edit(
            "tests/policy/sizing/test_guards.py",
            "TABLE: list[tuple[Guard, View, int | None, int | None]] = [\n",
            "    (guards.nothing_grows_asleep, view(slumber=Slumber.ASLEEP), None, 4),\n",
        ),
        Edit(
            "operator/holdfast/policy/sizing/guards.py",
            "PINS_OVERRULE: tuple[Guard, ...] = (",
            "def nothing_grows_asleep(proposal: Proposal) -> Bound | None:\n"
            "    if not proposal.view.minimum.asleep or proposal.after <= proposal.before:\n"
            "        return None\n"
            '    return Bound(proposal.before, Reason.DOWN_HOLD, "asleep")\n\n\n',
            before=True,
        ),
        Edit(
            "operator/holdfast/policy/sizing/guards.py", "(size_is_observed, *PINS_OVERRULE", ", nothing_grows_asleep"
        ),
    ),
    ("tests/policy/sizing/test_guards.py",),
    ((1, "has no attribute 'nothing_grows_asleep'"), (2, "test_the_list_holds_every_guard_once")),
    other=("policy/view.py",),
)
SIGNAL = Recipe(
    "### A PromQL signal",
    (
        Edit(
            "tests/observe/test_traffic_states.py",
            "def test_nothing_at_all_is_absent",
            "def test_lookups_of_the_prefix_cache_are_counted() -> None:\n"
            '    rows = [sample(7.0, metric="prefix_cache_queries_total")]\n'
            "    assert on_h100(judged(engines=[ENGINE], requests=rows)).looked_up_prompt_tokens == 7.0\n\n\n",
            before=True,
        ),
        Edit(
            "operator/holdfast/observe/series/queries.py",
            "    *CACHED_TOKENS,\n",
            '    "prefix_cache_queries_total",\n',
        ),
        Edit(
            "operator/holdfast/domain/signals.py",
            "    cached_prompt_tokens: float = 0.0\n",
            "    looked_up_prompt_tokens: float = 0.0  # in the prefix cache\n",
        ),
        Edit(
            "operator/holdfast/observe/signals/traffic.py",
            "        cached_prompt_tokens=count(*queries.CACHED_TOKENS),\n",
            '        looked_up_prompt_tokens=count("prefix_cache_queries_total"),\n',
        ),
        Edit(
            "operator/holdfast/twin/pods/view.py",
            '        cached_prompt_tokens=count["cached_tokens"],\n',
            '        looked_up_prompt_tokens=count["prompt_tokens"],\n',
        ),
    ),
    ("tests/observe/test_traffic_states.py", "tests/twin/test_twin_signals.py"),
    ((1, "has no attribute 'looked_up_prompt_tokens'"), (4, "test_twin_signals.py")),
    other=("domain/valid_traffic.py", "e2e/test_promql.py"),
)
ACCELERATOR = Recipe(
    "### An accelerator",
    (
        Edit("tests/enginemodel/test_engine_prior.py", "PRODUCTS = {\n", '    "NVIDIA-A2": "a2",\n'),
        Edit(
            "operator/holdfast/enginemodel/acceleratorrows.py",
            '    (r"t4", ',
            '    (r"a2", _gpu("a2", 15.0, 0.2, 0.018)),\n',
            before=True,
        ),
        Edit("CHANGELOG.md", "### Added\n\n", "- The A2 is known by its data sheet.\n"),
    ),
    ("tests/enginemodel/test_engine_prior.py", "tests/render/test_benchmark_rendering.py"),
    ((1, "test_a_product_label_names_the_accelerator[NVIDIA-A2-a2]"),),
)
ROW, MEANING = "| BusyElsewhere | ", "The replica serves somebody else."
REASON = Recipe(
    "### A reason",
    (
        Edit(
            "operator/holdfast/api/reasons.py",
            "    # Ready\n",
            f'    BUSY_ELSEWHERE = "BusyElsewhere", "{MEANING}"\n',
        ),
        Edit(
            "operator/holdfast/policy/explain/conditions.py", "\nLATE_SECONDS", "\nBUSY = Reason.BUSY_ELSEWHERE", True
        ),
        Edit("docs/api.md", "\n| Serving | ", f"\n{ROW}{MEANING} |", before=True),
        Edit(
            "docs/operations.md",
            "\n| EngineHung | Ready replicas hold requests and make no token, also",
            f"\n{ROW}| |",
            True,
        ),
        Edit("CHANGELOG.md", "### Added\n\n", "- The reason BusyElsewhere.\n"),
    ),
    (
        "tests/test_guards.py::test_every_reason_is_used",
        "tests/api/test_reference.py",
        "tests/docs/test_docs.py::test_every_reason_says_what_to_do",
    ),
    (
        (1, "test_every_reason_is_used"),
        (1, "test_the_reference_gives_the_meaning_of_every_reason[BusyElsewhere]"),
        (1, "test_every_reason_says_what_to_do[BusyElsewhere]"),
    ),
    other=(
        "policy/explain/messages.py",
        "tests/policy/explain/test_service_conditions.py",
        "tests/policy/explain/test_messages.py",
    ),
)
RECIPES = (GUARD, SIGNAL, ACCELERATOR, REASON)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """A copy of what recipes change, with its bytecode so that only edits compile, next to links to the rest."""
    for entry in ROOT.iterdir():
        if entry.name not in COPIED and entry.name != ".git":
            (tmp_path / entry.name).symlink_to(entry)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=LEFT_OUT)
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.heading)
def test_the_recipe_changes_the_files_of_its_table(recipe: Recipe) -> None:
    section = PAGE.split(recipe.heading, 1)[1].split("\n##", 1)[0]
    named = {
        file for row in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE) for file in re.findall(r"`(\S+)`", row)
    }
    paths = {from_root(file) for file in named}
    assert paths == {edit.file for edit in recipe.edits} | {from_root(file) for file in recipe.other}
    assert all((ROOT / path).exists() for path in paths)
    quoted = {word.split("[")[0] for _, word in recipe.failures if word.startswith("test_")}
    assert all(word in section for word in quoted)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.heading)
def test_the_recipe_fails_where_the_page_says_so_and_passes_at_the_end(recipe: Recipe, tree: Path) -> None:
    for number, edit in enumerate(recipe.edits, start=1):
        make(edit, tree)
        expected = [word for after, word in recipe.failures if after == number]
        if expected:
            passed, told = played(recipe, tree)
            assert not passed
            assert all(word in told for word in expected), told
    passed, told = played(recipe, tree)
    assert passed, told


def from_root(file: str) -> str:
    """The page names code from `operator/holdfast` on."""
    return file if file.startswith(SOURCES) else f"operator/holdfast/{file}"


def make(edit: Edit, tree: Path) -> None:
    path = tree / edit.file
    text = path.read_text()
    assert text.count(edit.text) == 1, f"{edit.file} has {text.count(edit.text)} times {edit.text!r}"
    path.write_text(text.replace(edit.text, edit.added + edit.text if edit.before else edit.text + edit.added))


def played(recipe: Recipe, tree: Path) -> tuple[bool, str]:
    """Whether the tests of a recipe pass in the copy, and what they print; the tree itself draws more examples."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--hypothesis-profile=few", *recipe.tests]
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'operator'}{os.pathsep}{tree}"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode == 0, done.stdout + done.stderr
