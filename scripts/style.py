"""Check what a program can see of the house style; `make lint` runs it.

    python scripts/style.py                 # docs, texts of the operator, subjects of new commits
    python scripts/style.py --message FILE  # the subject of one commit message: a hook for git

Docs: at most 120 characters a line. Tables, code blocks, and the targets of links do not count.
Commits: a subject has at most 72 characters. Checked are those since `origin/main`, or the last 20 without it, and none
from before this check.
Texts of operator/: no phrase of `BANNED` in a message, docstring or comment of several words.
"""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "e2e", "examples", "benchmarks", "charts")
MOST_LINE, MOST_SUBJECT, MOST_COMMITS = 120, 72, 20

BANNED = re.compile(
    r"\b(beside|told|those that|whoever|of which|what lacks|reckoned|answers? late|(can|could)( ?not)? be had"
    r"|is out(?! of))\b",
    re.IGNORECASE,
)
"""Private dialect: name the thing, and use the standard term."""


def long_lines(text: str) -> Iterator[int]:
    """Numbers of lines that are too long."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        is_image = re.fullmatch(r"\s*!\[.*\]\(\S+\)", line)
        counted = re.sub(r"\]\([^)]*\)|https?://\S+", "]", line)
        if len(counted) > MOST_LINE and not (is_code or is_image or line.lstrip().startswith("|")):
            yield number


def dialect(source: str) -> Iterator[tuple[int, str]]:
    """Line and sentence of each message, docstring or comment with a banned phrase; single words do not count."""
    literals = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    texts = [(node.lineno, node.value) for node in literals if isinstance(node.value, str)]
    for number, text in sorted([*texts, *_comments(source)]):
        words = " ".join(text.split())
        if " " in words and BANNED.search(words):
            yield number, next(filter(BANNED.search, re.split(r"(?<=[.:;]) ", words)), words)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """First line and text of each comment; whole lines that follow each other are one, as a phrase may wrap."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    whole = {each.start[0]: each.string.lstrip("# ") for each in comments if each.line.lstrip().startswith("#")}
    yield from ((each.start[0], each.string.lstrip("# ")) for each in comments if each.start[0] not in whole)
    for number in whole.keys() - {line + 1 for line in whole}:
        yield number, " ".join(whole[line] for line in itertools.takewhile(whole.__contains__, itertools.count(number)))


def is_too_long(subject: str) -> bool:
    """Whether a commit subject breaks the rule; git writes those of merges and reverts itself."""
    return len(subject) > MOST_SUBJECT and not re.match(r"(Merge|Revert|fixup!|squash!) ?", subject)


def _git(*words: str) -> list[str]:
    git = shutil.which("git")
    if git is None:
        return []
    done = subprocess.run([git, *words], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.splitlines() if done.returncode == 0 else []


def new_commits(git: Callable[..., list[str]] = _git) -> list[str]:
    """Hash and subject of the commits that are checked, where git and a history are there."""
    if not git("rev-parse", "HEAD"):
        return []
    since = git("log", "--diff-filter=A", "--format=%H", "-1", "--", "scripts/style.py")
    base = git("rev-parse", "--verify", "--quiet", "origin/main")
    excluded = [f"^{commit}" for commit in (*since, *base)]
    count = [] if base else [f"-{MOST_COMMITS}"]
    return git("log", "--no-merges", "--format=%h %s", *count, "HEAD", *excluded) if since else []


def main() -> int:
    """Print every fault; 1 where there is one."""
    parser = argparse.ArgumentParser(description="Check docs, texts of the operator and subjects of new commits.")
    parser.add_argument("--message", type=Path, help="check the subject of a commit message instead")
    given = parser.parse_args()
    if given.message:
        commits = [f"commit {line}" for line in given.message.read_text().splitlines()[:1]]
        faults = list(_subjects(commits))
    else:
        faults = [*_docs(), *_texts(), *_subjects(new_commits())]
    sys.stderr.writelines(f"{fault}\n" for fault in faults)
    return 1 if faults else 0


def _docs() -> Iterator[str]:
    pages = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
    for name, page in sorted((str(page.relative_to(ROOT)), page) for page in pages):
        yield from (f"{name}:{number}: more than {MOST_LINE} characters" for number in long_lines(page.read_text()))


def _texts(root: Path = ROOT) -> Iterator[str]:
    for file in sorted((root / "operator").rglob("*.py")):
        for number, text in dialect(file.read_text()):
            yield f"{file.relative_to(root)}:{number}: say it in standard terms: {text}"


def _subjects(commits: list[str]) -> Iterator[str]:
    for commit, _, subject in (each.partition(" ") for each in commits):
        if is_too_long(subject):
            yield f"{commit}: the subject has {len(subject)} characters, {MOST_SUBJECT} at most: {subject}"


if __name__ == "__main__":
    sys.exit(main())
