"""docs/platforms.md: each line says by which test it was checked, or that it was not."""

from __future__ import annotations

import re

import pytest

from tests.docs import named_tests

PAGE = named_tests.page("platforms.md")
LINES = named_tests.rows(PAGE, r"\|.* checked by \|")


def test_every_table_of_the_page_says_what_was_checked() -> None:
    assert len(LINES) >= 40
    assert len(re.findall(r"^\|[-|]+$", PAGE, re.MULTILINE)) == len(re.findall(r" checked by \|$", PAGE, re.MULTILINE))


@pytest.mark.parametrize("platform", ["EKS", "GKE", "AKS", "OpenShift", "k3s", "Istio", "Karpenter"])
def test_every_platform_has_its_lines(platform: str) -> None:
    assert re.search(rf"^(## |\| ){platform}\b", PAGE, re.MULTILINE)


@pytest.mark.parametrize("row", LINES)
def test_each_line_names_a_test_that_exists_or_says_untested(row: str) -> None:
    checked = row.removesuffix(" |").rpartition(" | ")[2]
    if checked.startswith("untested"):
        return
    path, name = re.match(r"`([\w/.]+)::(\w+)`", checked).groups()  # type: ignore[union-attr]
    assert named_tests.exists(path, name)
