"""When a run that is written down is made again: when its code does something else, not when it reads otherwise."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import holdfast
from benchmarks.autoscaling.journal import ASKED, BESIDES, FAST_LOOP, IN_PODS, PEERS, SHARED, code, code_digest
from holdfast.twin.policies import POLICIES, make_policy

PLAIN = '''"""What it is for."""
LIMIT = 3
"""Seconds."""


def late(at: float) -> str:
    """Whether it is."""
    # As told.
    if at > LIMIT:
        return "late"
    return "in time"
'''


def read(folder: Path, content: str) -> str:
    path = folder / f"{abs(hash(content))}.py"
    path.write_text(content)
    return code(path)


@pytest.mark.parametrize(
    ("words", "others"),
    [
        ('"""What it is for."""', '"""Another sentence."""'),
        ('"""Seconds."""\n', ""),
        ('    """Whether it is."""\n', '    """Whether it is.\n\n    It says how."""\n'),
        ("    # As told.\n", "\n"),
        ("LIMIT = 3", "LIMIT = 3  # of them"),
        ("at > LIMIT:\n        return", "at > LIMIT:\n            return"),
        ("(at: float)", "(\n    at: float\n)"),
    ],
)
def test_words_about_code_are_no_other_code(words: str, others: str, tmp_path: Path) -> None:
    assert words in PLAIN
    assert read(tmp_path, PLAIN.replace(words, others)) == read(tmp_path, PLAIN)


@pytest.mark.parametrize(
    ("words", "others"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("at > LIMIT", "at >= LIMIT"),
        ('"late"', '"later"'),
        ('    return "in time"', '        return "in time"'),
        ('return "in time"', '"in time"'),
        ("late(at", "late_at(at"),
    ],
)
def test_what_does_something_else_is_other_code(words: str, others: str, tmp_path: Path) -> None:
    assert words in PLAIN
    assert read(tmp_path, PLAIN.replace(words, others)) != read(tmp_path, PLAIN)


def test_no_run_comes_from_what_only_shows_runs() -> None:
    root = Path(holdfast.__file__).parent
    apart = {root / name for name in ASKED}
    names = set(map(module, ASKED))
    for name in (*SHARED, "policy"):
        place = root / name
        for file in [place] if place.is_file() else set(place.rglob("*.py")) - apart:
            assert not names & imported(file), file


def test_runs_of_engines_with_the_plugin_and_no_others_come_from_the_fast_loop() -> None:
    root = Path(holdfast.__file__).parent / "twin"
    modules = set(map(module, FAST_LOOP))
    assert {file.name for file in root.rglob("*.py") if imported(file) & modules} == {
        "arrivals.py",
        "batch.py",
        "engines.py",
        "fast_loop.py",
        "fleet.py",
        "queue_lanes.py",
        "step_end.py",
        "step_plan.py",
    }
    for name, (knobs, _) in POLICIES.items():
        policy = make_policy(name if name != "static" else "static:3", dict.fromkeys(knobs, 1.0))
        assert policy.fast_loop == (set(FAST_LOOP) <= set(BESIDES.get(name, ()))), name


def test_no_run_comes_from_what_ties_the_plugin_to_its_pod() -> None:
    root = Path(holdfast.__file__).parent
    apart = {(root / name).resolve() for name in IN_PODS}
    names = set(map(module, IN_PODS))
    assert all(file.is_file() for file in apart)
    for name in (*SHARED, "policy", "../holdfast_engine"):
        place = (root / name).resolve()
        for file in [place] if place.is_file() else set(place.rglob("*.py")) - apart:
            assert not names & imported(file), file


def test_a_peer_comes_from_its_own_module_and_from_what_all_share() -> None:
    root = Path(holdfast.__file__).parent
    shared = set(map(module, PEERS))
    for file in (root / "twin" / "peers").glob("*.py"):
        siblings = {name for name in imported(file) if name.startswith("holdfast.twin.peers.")}
        assert {".".join(name.split(".")[:4]) for name in siblings} <= shared, file
    assert len({code_digest(peer) for peer in ("hpa", "wva", "knative")}) == 3
    assert code_digest("keda-queue") == code_digest("keda-slo")


def module(name: str) -> str:
    """The module of a file that is named from the folder of `holdfast`."""
    parts = Path("holdfast", name).with_suffix("").parts
    return ".".join(parts[parts.index("..") + 1 :] if ".." in parts else parts)


def imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


def test_every_policy_has_a_digest_of_its_own_code() -> None:
    assert code_digest("static:3") == code_digest("static:5")
    assert len({code_digest(policy) for policy in ("holdfast", "holdfast-slow", "static", "oracle", "hpa")}) == 5
    assert set(BESIDES) >= {"holdfast", "holdfast-slow", "static", "oracle"}
