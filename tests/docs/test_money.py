"""README's answer to the question about money: its figures are those of the benchmarks' page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_, _, _SECTION = (ROOT / "README.md").read_text().partition("## Does it save money?\n")
SECTION = _SECTION.partition("\n## ")[0]
FIGURES = sorted(set(re.findall(r"\d+\.\d+|\d+ %", SECTION)))
PAGE = (ROOT / "docs" / "benchmarks.md").read_text()


def test_there_is_an_answer_with_its_misses() -> None:
    assert len(FIGURES) > 6
    assert "It does not always" in SECTION


@pytest.mark.parametrize("figure", FIGURES)
def test_each_figure_stands_on_the_benchmarks_page(figure: str) -> None:
    assert re.search(rf"(?<![\d.]){re.escape(figure)}", PAGE)
