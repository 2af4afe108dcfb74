"""What engine pods mount, read from the packages once, when the operator is wired."""

from __future__ import annotations

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


def load_pod_files() -> dict[str, str]:
    """The text of each file by name, for RenderSettings; the renderer itself reads nothing."""
    folder = resources.files("holdfast.render") / "pod"
    return {name: (folder / name).read_text(encoding="utf-8") for name in _FILES}


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
    """Python without comments and docstrings, which are half of what a ConfigMap of each service would hold.

    Every statement stays on its line, so that a traceback from a pod leads to the source.
    """
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
    return "\n".join(lines) + "\n"


def _plugin_files(package: Traversable) -> Iterator[tuple[str, Traversable]]:
    """Path in the zip and file: the modules, and what importlib.metadata reads beside them."""
    for file in package.iterdir():
        if file.name.endswith(".py"):
            yield f"holdfast_engine/{file.name}", file
    for file in (package / "dist-info").iterdir():
        yield f"holdfast_engine-{VERSION}.dist-info/{file.name}", file
