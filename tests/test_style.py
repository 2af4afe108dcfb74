"""What the style check sees, and what it lets pass."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "style.py"
LONG = "word " * 30


@pytest.fixture(scope="module")
def style() -> ModuleType:
    spec = importlib.util.spec_from_file_location("style", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x" * 120, []),
        ("x" * 121, [1]),
        (f"short\n{LONG}", [2]),
        (f"- {LONG}", [1]),
        (f"| {LONG} | {LONG} |", []),
        (f"```\n{LONG}\n```\n{LONG}", [4]),
        (f"  ```sh\n{LONG}\n  ```", []),
        (f"![{LONG}](docs/images/bench.png)", []),
        (f"[here](docs/{'x' * 120}.md)", []),
        (f"See https://example.com/{'x' * 120}", []),
        (f"[here](docs/api.md) {LONG}", [1]),
    ],
)
def test_a_line_of_a_page_has_at_most_120_characters(style: ModuleType, text: str, lines: list[int]) -> None:
    assert list(style.long_lines(text)) == lines


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ('TEXT = "one replica beside it"', ["one replica beside it"]),
        ('TEXT = f"{name} is out ({detail})"', ["is out ("]),
        ('TEXT = f"{name} is out of memory"', []),
        ('def told() -> str:\n    """What is known."""\n    beside = 1\n    return "one replica is ready"', []),
        ('"""What stands.\n\nIt serves: those\nthat wait."""', ["those that wait."]),
        ('def told() -> str:\n    """Whoever asks."""\n    return ""', ["Whoever asks."]),
        ("# One beside it.\nONE = 1  # those that wait", ["One beside it.", "those that wait"]),
        ("# One replica of\n# which two wait.", ["One replica of which two wait."]),
        ("ONE = 1  # beside\n", []),
        ('TEXT = "it can be had"\nOTHER = "Those that wait"', ["it can be had", "Those that wait"]),
        ('TEXT = "toldeverywhere"', []),
        ('NAME = "told"', []),
    ],
)
def test_no_text_holds_a_banned_phrase(style: ModuleType, source: str, texts: list[str]) -> None:
    assert [text for _, text in style.dialect(source)] == texts


def test_a_banned_phrase_is_found_where_it_stands(style: ModuleType) -> None:
    assert list(style.dialect('ONE = 1\nTEXT = "what it was told"')) == [(2, "what it was told")]
    assert list(style.dialect("# one\n# two\n\nONE = 1\n# it was told")) == [(5, "it was told")]


def test_the_check_reads_the_operator_and_the_plugin(style: ModuleType, tmp_path: Path) -> None:
    for package in ("holdfast/policy", "holdfast_engine"):
        (tmp_path / "operator" / package).mkdir(parents=True)
        (tmp_path / "operator" / package / "it.py").write_text('"""Whoever asks."""\n')
    assert [fault.partition(":")[0] for fault in style._texts(tmp_path)] == [
        "operator/holdfast/policy/it.py",
        "operator/holdfast_engine/it.py",
    ]


@pytest.mark.parametrize(
    ("subject", "is_too_long"),
    [("x" * 72, False), ("x" * 73, True), (f"Merge branch {'x' * 72}", False), (f'Revert "{"x" * 72}"', False)],
)
def test_a_subject_has_at_most_72_characters(style: ModuleType, subject: str, is_too_long: bool) -> None:
    assert style.is_too_long(subject) == is_too_long


@pytest.mark.parametrize(("subject", "code"), [("Add a guard", 0), (f"Add {'x' * 72}", 1)])
def test_a_commit_message_can_be_checked_before_it_is_committed(subject: str, code: int, tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.write_text(f"{subject}\n\nA body of {LONG}\n")
    command = [sys.executable, str(SCRIPT), "--message", str(message)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, subject in done.stderr) == (code, bool(code))


def test_commits_from_before_the_check_are_left_alone(style: ModuleType) -> None:
    asked: list[tuple[str, ...]] = []
    answers = {"rev-parse HEAD": ["abc"], "log --diff-filter=A --format=%H -1 -- scripts/style.py": ["first"]}

    def git(*words: str) -> list[str]:
        asked.append(words)
        return answers.get(" ".join(words), [])

    assert style.new_commits(git) == []
    assert asked[-1] == ("log", "--no-merges", "--format=%h %s", "-20", "HEAD", "^first")
    answers["rev-parse --verify --quiet origin/main"] = ["main"]
    style.new_commits(git)
    assert asked[-1] == ("log", "--no-merges", "--format=%h %s", "HEAD", "^first", "^main")
    answers.clear()
    assert style.new_commits(git) == []
    assert asked[-1] == ("rev-parse", "HEAD")
