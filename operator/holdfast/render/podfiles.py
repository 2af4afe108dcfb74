"""What engine pods mount, read from the packages once, when the operator is wired."""

from __future__ import annotations

import ast
import io
import itertools
import tokenize
import zipfile
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

from holdfast_engine import VERSION

_FILES = ("launcher.py", "prestop.py", "holdfast_middleware.py", "holdfast_pod_server.py")
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)
_READABLE = 0o100644 << 16
_INDENT = 4


def load_pod_files() -> dict[str, str]:
    """The code of each file by name, for RenderSettings; the renderer itself reads nothing."""
    folder = resources.files("holdfast.render") / "pod"
    return {name: code_alone((folder / name).read_text(encoding="utf-8")) for name in _FILES}


def load_plugin() -> bytes:
    """The plugin as a zip that Python imports from and finds entry points in; the same bytes every time."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, file in sorted(_plugin_files(resources.files("holdfast_engine"))):
            entry = zipfile.ZipInfo(path, _FIRST_DAY)
            entry.external_attr = _READABLE
            text = file.read_text(encoding="utf-8")
            stored = code_alone(text) if path.endswith(".py") else text
            archive.writestr(entry, stored, zipfile.ZIP_DEFLATED, compresslevel=9)
    return written.getvalue()


def code_alone(text: str) -> str:
    """Python without comments, docstrings and types of parameters, which are half of what a ConfigMap of each service
    would hold.

    Every statement stays on its line, so that a traceback from a pod leads to the source. Blocks are indented by one
    space each.
    """
    text = _untyped(text)
    lines, ends = text.splitlines(), (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    statements = [token for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL)]
    alone = zip([tokenize.NEWLINE, *(token.type for token in statements)], itertools.pairwise(statements), strict=False)
    for before, (token, behind) in alone:
        if token.type == tokenize.STRING and before in ends and behind.type == tokenize.NEWLINE:
            (row, column), (last, end) = token.start, token.end
            lines[row - 1 : last] = [lines[row - 1][:column] + '""' + lines[last - 1][end:], *[""] * (last - row)]
    for token in tokens:
        if token.type == tokenize.COMMENT:
            row = token.start[0] - 1
            lines[row] = lines[row].replace(token.string, "").rstrip()
    # Rows that begin within a text of several lines: their spaces belong to it.
    within = {row for token in tokens for row in range(token.start[0], token.end[0])}
    return "".join(f"{line if row in within else _outdented(line)}\n" for row, line in enumerate(lines))


def _untyped(text: str) -> str:
    """Functions without the types of what they take and return: nothing reads them in a pod."""
    lines = [line.encode() for line in text.splitlines()]
    for row, begin, end in sorted(set(_types(ast.parse(text), lines)), reverse=True):
        lines[row - 1] = lines[row - 1][:begin] + lines[row - 1][end:]
    return "".join(f"{line.decode()}\n" for line in lines)


def _types(tree: ast.AST, lines: list[bytes]) -> Iterator[tuple[int, int, int]]:
    """Row, first and last byte of each type that stands on one row with its name."""
    for node in ast.walk(tree):
        found: ast.expr | None = node.annotation if isinstance(node, ast.arg) else getattr(node, "returns", None)
        end = found.end_col_offset if found is not None and found.lineno == found.end_lineno else None
        if found is None or end is None:
            continue
        if isinstance(node, ast.arg) and node.lineno == found.lineno:
            yield found.lineno, node.col_offset + len(node.arg.encode()), end
        elif not isinstance(node, ast.arg):
            yield found.lineno, lines[found.lineno - 1].rindex(b" ->", 0, found.col_offset), end


def _outdented(line: str) -> str:
    code = line.lstrip(" ")
    return " " * ((len(line) - len(code)) // _INDENT) + code


def _plugin_files(package: Traversable) -> Iterator[tuple[str, Traversable]]:
    """Path in the zip and file: the modules, and what importlib.metadata reads."""
    yield from _modules(package, "holdfast_engine")
    for file in (package / "dist-info").iterdir():
        yield f"holdfast_engine-{VERSION}.dist-info/{file.name}", file


def _modules(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for file in folder.iterdir():
        if file.is_dir():
            yield from _modules(file, f"{path}/{file.name}")
        elif file.name.endswith(".py"):
            yield f"{path}/{file.name}", file
