"""Draw changes of the code by lot, and see whether the unit tests of its package notice them.

    python benchmarks/mutations.py                           # 40 mutations of the policy and of the engine plugin
    python benchmarks/mutations.py --seed 2 --draw 9 --room tests/policy

A mutation flips a comparison, changes a number or a flag, negates a branch, or drops what a function returns. The same
seed draws the same mutations of the same code. Each is made in a copy of `operator/`, and tried by the tests of the
same folder: first by those that import the changed module. One that survives is not yet a gap: it may be equivalent.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCES = ("operator/holdfast/policy", "operator/holdfast_engine")

FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


class Mutation(NamedTuple):
    """A place in a file (bytes from `begin` to `end`), what it becomes, and its line."""

    path: Path
    line: int
    begin: int
    end: int
    before: str
    after: str

    def source(self) -> bytes:
        """The whole file with this change."""
        text = self.path.read_bytes()
        return text[: self.begin] + self.after.encode() + text[self.end :]

    def __str__(self) -> str:
        """Where and what, in one line."""
        shown = [" ".join(each.split())[:70] for each in (self.before, self.after)]
        return f"{self.path.relative_to(ROOT)}:{self.line}: {shown[0]}  ->  {shown[1]}"


def mutations(path: Path) -> Iterator[Mutation]:
    """Yield every mutation of a file, from top to bottom."""
    text = path.read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _nodes(ast.parse(text)):
        for part, after in _changes(node):
            begin = starts[part.lineno - 1] + part.col_offset
            end = starts[(part.end_lineno or part.lineno) - 1] + (part.end_col_offset or 0)
            yield Mutation(path, part.lineno, begin, end, text[begin:end].decode(), after)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes without texts, annotations and imports."""
    yield node
    for name, child in ast.iter_fields(node):
        if name in ("annotation", "returns") or isinstance(node, ast.JoinedStr):
            continue
        for each in child if isinstance(child, list) else [child]:
            if isinstance(each, ast.AST):
                yield from _nodes(each)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield what may become of a node: the part that is replaced, and by what."""
    match node:
        case ast.Compare(ops=[op]):
            yield node, f"({ast.unparse(ast.Compare(node.left, [FLIPPED[type(op)]()], node.comparators))})"
        case ast.Constant(value=bool() as flag):
            yield node, str(not flag)
        case ast.Constant(value=int() | float() as number):
            yield node, repr(number + 1 if isinstance(number, int) else 2.0 * number or 1.0)
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield node, "return None"
    if isinstance(node, (ast.If, ast.IfExp)):
        yield node.test, f"(not ({ast.unparse(node.test)}))"


def rooms(path: Path) -> list[Path]:
    """Return the test files of the folder of a source file, first the one of its name and those that import it."""
    inside = path.relative_to(ROOT / "operator")
    parts = inside.parts[1:] if inside.parts[0] == "holdfast" else inside.parts
    folder = next(f for f in (ROOT.joinpath("tests", *parts[:n]) for n in range(len(parts) - 1, 0, -1)) if f.is_dir())
    module = ".".join(inside.with_suffix("").parts)
    package, _, name = module.rpartition(".")
    files = sorted({*folder.glob("test_*.py"), *(ROOT / "tests" / parts[0]).glob("test_*.py")})
    texts = {file: file.read_text() for file in files}
    imports = {f: module in t or f"from {package} import {name}" in t for f, t in texts.items()}
    own = f"test_{name}.py"
    return sorted(files, key=lambda file: (file.name != own, not imports[file], file.parent != folder, file.name))


def verdict(mutation: Mutation, files: list[Path], limit_seconds: int) -> str:
    """Say whether tests fail for a mutation: `killed`, `survived`, or `late` where they take too long to say."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "operator"
        shutil.copytree(ROOT / "operator", copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / mutation.path.relative_to(ROOT / "operator")).write_bytes(mutation.source())
        # The project's own pythonpath would come first, with the code as it is.
        paths = (f"--override-ini=pythonpath={copy} {ROOT}", "--import-mode=importlib")
        command = ["prlimit", f"--cpu={limit_seconds}", sys.executable, "-m", "pytest", "-x", "-q", *paths]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(copy), str(ROOT)))}
        tried = subprocess.run([*command, *map(str, files)], cwd=ROOT, env=environment, capture_output=True)
    if tried.returncode == -signal.SIGXCPU:
        return "late"
    return "survived" if tried.returncode == 0 else "killed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the lot; default 1")
    parser.add_argument("--draw", type=int, default=40, help="how many mutations; default 40")
    parser.add_argument(
        "--seconds", type=int, default=300, help="of a processor for the tests of one mutation; default 300"
    )
    parser.add_argument("--nearest", type=int, help="only so many test files of the package, the nearest first")
    parser.add_argument("--room", type=Path, nargs="*", help="test files or folders in place of those of the package")
    options = parser.parse_args()
    files = sorted(file for source in SOURCES for file in (ROOT / source).rglob("*.py"))
    found = [each for file in files for each in mutations(file)]
    drawn = random.Random(options.seed).sample(found, options.draw)
    print(f"{len(found)} mutations of {len(files)} files; {len(drawn)} drawn with seed {options.seed}", flush=True)
    counts: dict[str, int] = {}
    for number, mutation in enumerate(drawn, start=1):
        began = time.monotonic()
        result = verdict(mutation, options.room or rooms(mutation.path)[: options.nearest], options.seconds)
        counts[result] = counts.get(result, 0) + 1
        print(f"{number:3} {result:8} {time.monotonic() - began:4.0f} s  {mutation}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
