"""Tables of the docs whose rows name tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    """The text of a page."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def rows(text: str, head: str) -> list[str]:
    """The rows of all tables whose head matches."""
    tables = re.findall(rf"^{head}\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [row for table in tables for row in table.splitlines()]


def exists(path: str, name: str) -> bool:
    """Whether a file has a test of this name."""
    return f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")
