"""What comments, docstrings and pages cite is there: pages, sections, files, modules and names.

Names are looked up in the tree, so that a module that moves takes no entry here with it. A form that may mean something
else (a field of the API, a value of the chart, a file of vLLM) is not checked.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SKIPPED = {"__pycache__", "build", "dist", "node_modules", "results", "shared"}
DESIGNS = "docs/designs/"

URL = re.compile(r"(?:\w+://|github\.com/|huggingface\.co/)[^\s)>\]]+")
PATH = re.compile(r"(?<![\w./:~$}-])((?:[\w.-]+/)*[\w.-]+\.(?:py|md))(?:#([\w-]+))?(?![\w/])")
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
SECTION = re.compile(r"control[ -]law(?:\.md)?[`)]*, sections? \d+(?:(?:, | and | to )\d+)*\b", re.IGNORECASE)
NOTE = re.compile(r"(?:design note|note|design) (\d{4})\b|\[(\d{4})\](?!\()")
BACKTICKED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
DOTTED = re.compile(r"(?<![\w./:$<@-])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?![\w/:@-]|\.\w)")
COMMAND = re.compile(r"python3? -m (\w+(?:\.\w+)*)")
COMMENT = re.compile(r"(?:^\s*|  )#(?!!)(.*)$")
TEST = re.compile(r"test_\w+")


class Text(NamedTuple):
    """A piece of prose: where it stands, and what it says."""

    file: Path
    line: int
    words: str

    def at(self, offset: int) -> str:
        """Where that character stands."""
        return f"{self.file.relative_to(ROOT)}:{self.line + self.words.count(chr(10), 0, offset)}"


@cache
def files() -> tuple[Path, ...]:
    """Every file of the project."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(
            name
            for name in folders
            if name not in SKIPPED and not name.startswith(".") and not Path(folder, name, "pyvenv.cfg").exists()
        )
        found += [Path(folder, name) for name in sorted(names)]
    return tuple(found)


@cache
def ends() -> dict[str, tuple[Path, ...]]:
    """Files by each end of their path."""
    found: dict[str, list[Path]] = {}
    for file in files():
        parts = file.relative_to(ROOT).parts
        for start in range(len(parts)):
            found.setdefault("/".join(parts[start:]), []).append(file)
    return {end: tuple(each) for end, each in found.items()}


@cache
def folders() -> frozenset[str]:
    """Names of all folders that hold modules or pages."""
    return frozenset(
        part for file in files() if file.suffix in {".py", ".md"} for part in file.relative_to(ROOT).parts[:-1]
    )


@cache
def modules() -> dict[str, tuple[Path, ...]]:
    """Modules and packages by each end of their dotted name."""
    found: dict[str, set[Path]] = {}
    for file in files():
        if file.suffix != ".py":
            continue
        parts = file.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] in {"__init__", "__main__"} else parts
        for start in range(len(parts)):
            found.setdefault(".".join(parts[start:]), set()).add(file)
            for end in range(start + 1, len(parts)):  # a folder of modules is a package, __init__ or not
                found.setdefault(".".join(parts[start:end]), set())
    return {name: tuple(sorted(each)) for name, each in found.items()}


class Module(NamedTuple):
    """What one module holds, found in one walk."""

    body: list[ast.stmt]
    docstrings: list[tuple[int, str]]
    classes: list[ast.ClassDef]
    functions: set[str]
    imports: set[str]


@cache
def module(file: Path) -> Module:
    """Read a module."""
    parsed = ast.parse(file.read_text())
    found = Module(parsed.body, [], [], set(), set())
    for node in ast.walk(parsed):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.docstrings.append((node.lineno, node.value.value))
        elif isinstance(node, ast.ClassDef):
            found.classes.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.functions.add(node.name)
        elif isinstance(node, ast.Import):
            found.imports.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.imports.add(node.module.partition(".")[0])
    return found


@cache
def sources() -> tuple[tuple[Path, Module], ...]:
    """All modules."""
    return tuple((file, module(file)) for file in files() if file.suffix == ".py")


def members(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Names that statements bind, and by what."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for each in (name for target in targets for name in ast.walk(target)):
                if isinstance(each, ast.Name | ast.Attribute):
                    yield each.id if isinstance(each, ast.Name) else each.attr, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], node
        elif isinstance(node, ast.If | ast.Try):
            yield from members([*node.body, *node.orelse])


def holds(body: Iterable[ast.stmt], names: tuple[str, ...]) -> bool:
    """Whether the names lead from one to the next: members of a module, then of a class."""
    if not names:
        return True
    for name, node in members(body):
        if name != names[0]:
            continue
        inner: list[ast.stmt] = []
        if isinstance(node, ast.ClassDef):
            inner = [
                *node.body,
                *(each for method in node.body for each in ast.walk(method) if isinstance(each, ast.stmt)),
            ]
            if node.bases and len(names) > 1 and not holds(inner, names[1:]):
                return True  # it may be inherited
        if not isinstance(node, ast.ClassDef) and len(names) > 1:
            return isinstance(node, ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom)
        if holds(inner, names[1:]):
            return True
    return False


def resolves(name: str) -> bool:
    """Whether a dotted name leads to a module, or to something in one; a class may stand for its module."""
    parts = tuple(name.split("."))
    for end in range(len(parts), 0, -1):
        for file in modules().get(".".join(parts[:end]), ()):
            if holds(module(file).body, parts[end:]):
                return True
        if end == len(parts) and ".".join(parts) in modules():
            return True
    return any(holds(each.body, parts[1:]) for each in classes().get(parts[0], ()))


@cache
def classes() -> dict[str, tuple[ast.ClassDef, ...]]:
    """All classes by name."""
    found: dict[str, list[ast.ClassDef]] = {}
    for _, each in sources():
        for node in each.classes:
            found.setdefault(node.name, []).append(node)
    return {name: tuple(nodes) for name, nodes in found.items()}


@cache
def packages() -> frozenset[str]:
    """Names of the folders that can be imported."""
    return frozenset(file.parent.name for file in files() if file.name == "__init__.py")


BOTH = {"policy"}
"""Fields of the API and packages of ours: with a dot behind it, prose means the package (`router.policy` is last)."""


@cache
def foreign() -> frozenset[str]:
    """Modules that are imported somewhere and are not the project's, and fields of its API and chart."""
    own = {file.name for folder in (ROOT, ROOT / "operator") for file in folder.iterdir()}
    imported = {name for _, each in sources() for name in each.imports} | set(sys.stdlib_module_names) | {"vllm"}
    chosen = (file for file in files() if file.suffix == ".yaml" and {"crds", "charts"} & set(file.parts))
    documents = (document for file in chosen for document in yaml.safe_load_all(_plain(file)))
    return frozenset((imported - own) | {key for document in documents for key in _keys(document)} - BOTH)


def _plain(file: Path) -> str:
    return "" if "{{" in (text := file.read_text()) else text


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


def prose(file: Path) -> Iterator[Text]:
    """Comments and docstrings of a module, comments of other code, all of a page but for its fenced blocks."""
    if file.suffix == ".py":
        return _of_module(file)
    return _of_page(file) if file.suffix == ".md" else _of_comments(file)


def _of_module(file: Path) -> Iterator[Text]:
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        if comment := COMMENT.search(line):
            yield Text(file, number, comment[1])
    for number, words in module(file).docstrings:
        yield Text(file, number, words)


def _of_page(file: Path) -> Iterator[Text]:
    block = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    yield Text(file, 1, block.sub(lambda found: "\n" * found[0].count("\n"), file.read_text()))


def _of_comments(file: Path) -> Iterator[Text]:
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        if "#" in line:
            yield Text(file, number, line.partition("#")[2])


@cache
def texts() -> tuple[Text, ...]:
    """All prose, without the addresses in it."""
    known = {".md", ".py", ".yaml", ".toml", ".sh"}
    chosen = [file for file in files() if file.suffix in known or file.name == "Makefile"]
    return tuple(
        text._replace(words=URL.sub(lambda url: " " * len(url[0]), text.words))
        for file in chosen
        for text in prose(file)
    )


@cache
def pages() -> tuple[Text, ...]:
    return tuple(text for text in texts() if text.file.suffix == ".md")


@cache
def anchors(page: Path) -> frozenset[str]:
    """What a link may name on a page, as GitHub makes it of headings."""
    found: list[str] = []
    for text in prose(page):
        for heading in re.findall(r"^#+ (.+)$", text.words, re.MULTILINE):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.lower())
            name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
            found.append(f"{name}-{found.count(name)}" if name in found else name)
    return frozenset(found)


def design(number: str) -> list[Path]:
    """The design note of that number."""
    return sorted((ROOT / DESIGNS).glob(f"{number}-*.md"))


def test_links_lead_to_a_file_and_a_heading() -> None:
    broken = []
    for page in pages():
        for link in LINK.finditer(page.words):
            path, _, anchor = link[2].partition("#")
            target = (page.file.parent / path).resolve() if path else page.file
            if ":" in path or not path.strip():
                continue
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                broken.append(f"{page.at(link.start())} {link[2]}")
        for link in re.finditer(r"\]\(#([^)\s]+)\)", page.words):
            if link[1] not in anchors(page.file):
                broken.append(f"{page.at(link.start())} #{link[1]}")
    assert not broken, "\n".join(broken)


def test_a_number_that_is_a_link_is_that_of_the_note() -> None:
    broken = [
        f"{page.at(link.start())} {link[0]}"
        for page in pages()
        for link in LINK.finditer(page.words)
        if re.fullmatch(r"\d{4}", link[1]) and not link[2].rpartition("/")[2].startswith(f"{link[1]}-")
    ]
    assert not broken, "\n".join(broken)


def test_notes_that_are_cited_by_number_exist() -> None:
    broken = [
        f"{text.at(cited.start())} {cited[0]}"
        for text in texts()
        for cited in NOTE.finditer(text.words)
        if not design(cited[1] or cited[2])
    ]
    assert not broken, "\n".join(broken)


def test_sections_of_the_control_law_exist() -> None:
    (law,) = (ROOT / DESIGNS).glob("*-control-law.md")
    sections = set(re.findall(r"^## (\d+)\. ", law.read_text(), re.MULTILINE))
    cited = [
        (text.at(match.start()), number)
        for text in texts()
        for match in SECTION.finditer(text.words)
        for number in re.findall(r"\d+", match[0].partition("section")[2])
    ]
    assert cited
    assert not [each for each in cited if each[1] not in sections]


def test_files_that_are_named_exist() -> None:
    """With a folder of the project's before it, or a page by its name: other modules may be other people's."""
    broken = []
    for text in texts():
        for match in PATH.finditer(text.words):
            path, anchor = match[1].removeprefix("./"), match[2]
            if not _is_ours_to_keep(path):
                continue
            beside = text.file.parent / path
            named = [*ends().get(path, ()), *([beside.resolve()] if beside.exists() else [])]
            if not named or (anchor and not any(anchor in anchors(page) for page in named)):
                broken.append(f"{text.at(match.start())} {match[0]}")
    assert not broken, "\n".join(broken)


def _is_ours_to_keep(path: str) -> bool:
    first, _, rest = path.partition("/")
    if path.endswith("__init__.py"):
        return False
    return first in folders() - foreign() if rest else bool(re.fullmatch(r"[\w-]+\.md|test_\w+\.py", path))


def test_modules_that_commands_start_exist() -> None:
    broken = [
        f"{page.relative_to(ROOT)} {name}"
        for page in files()
        if page.suffix in {".md", ".py"}
        for name in COMMAND.findall(page.read_text())
        if name.partition(".")[0] in folders() - foreign() and name not in modules()
    ]
    assert not broken, "\n".join(broken)


def test_tests_that_pages_name_exist() -> None:
    functions = {name for _, each in sources() for name in each.functions}
    broken = [
        f"{page.at(match.start())} {match[1]}"
        for page in pages()
        for match in BACKTICKED.finditer(page.words)
        if TEST.fullmatch(match[1]) and match[1] not in functions and match[1] not in modules()
    ]
    assert not broken, "\n".join(broken)


def test_names_in_code_that_are_cited_exist() -> None:
    """In backticks, or after a package of the project's: `fleet.allocate`, policy.allocation."""
    broken = []
    for text in texts():
        quoted = [(match.start(1), match[1]) for match in BACKTICKED.finditer(text.words)]
        names = [(begin, name) for begin, name in quoted if DOTTED.fullmatch(name) and _is_code(name)]
        names += [(match.start(1), match[1]) for match in DOTTED.finditer(text.words) if _is_ours(match[1])]
        broken += [f"{text.at(begin)} {name}" for begin, name in names if not resolves(name)]
    assert not broken, "\n".join(sorted(set(broken)))


@pytest.mark.parametrize("name", ["fleet_wants._places", "policy.gone", "demand.gone_too", "Slo.never_there"])
def test_a_name_that_is_gone_is_found_out(name: str) -> None:
    assert _is_code(name)
    assert not resolves(name)


def test_a_file_that_is_gone_is_found_out() -> None:
    assert _is_ours_to_keep("policy/gone.py")
    assert _is_ours_to_keep("evaluation.md")
    assert not _is_ours_to_keep("planner/core/load_scaling.py")


def _is_code(name: str) -> bool:
    """Python's own way to write names, and nobody else's: no field of the API, no file, no module of others."""
    first, *rest = name.split(".")
    if first in foreign() or re.search(r"[a-z][A-Z]", "".join(rest)) or rest[-1] in _endings():
        return False
    if first[0].isupper():
        return first in classes()
    return first in modules() or any("_" in part for part in (first, *rest))


def _is_ours(name: str) -> bool:
    """A module of a package, named with the package: nothing else is written like that in prose."""
    parts = name.split(".")
    return parts[0] in packages() - foreign() and not _endings().intersection(parts) and name.islower()


@cache
def _endings() -> frozenset[str]:
    """Of file names, of the API group and of hosts."""
    return frozenset({file.suffix.removeprefix(".") for file in files()} | {"dev", "local", "com"})
