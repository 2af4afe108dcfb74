"""docs/security.md: each attack names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
ATTACKS = [
    row
    for table in re.findall(r"^\| attack .*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    for row in table.splitlines()
]


def test_the_page_has_attacks_of_every_kind() -> None:
    assert len(ATTACKS) >= 20


@pytest.mark.parametrize("row", ATTACKS)
def test_each_attack_names_a_test_that_exists(row: str) -> None:
    path, name = re.fullmatch(r"\|.*\| `([\w/.]+)::(\w+)` \|", row).groups()  # type: ignore[union-attr]
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")
