"""docs/security.md: each attack names a test that exists."""

from __future__ import annotations

import re

import pytest

from tests.docs import named_tests

ATTACKS = named_tests.rows(named_tests.page("security.md"), r"\| attack .*")


def test_the_page_has_attacks_of_every_kind() -> None:
    assert len(ATTACKS) >= 20


@pytest.mark.parametrize("row", ATTACKS)
def test_each_attack_names_a_test_that_exists(row: str) -> None:
    path, name = re.fullmatch(r"\|.*\| `([\w/.]+)::(\w+)` \|", row).groups()  # type: ignore[union-attr]
    assert named_tests.exists(path, name)
