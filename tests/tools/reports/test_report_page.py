"""What all reports share: lines and verdicts that differ by more than red and green, in light and dark."""

from __future__ import annotations

from holdfast.tools.reports import page


def test_lines_of_one_panel_differ_by_marker_and_dash_as_well_as_by_colour() -> None:
    for part in ("color", "marker", "linestyle"):
        assert len({str(line[part]) for line in page.LINES}) == len(page.LINES)


def test_a_report_tells_held_from_missed_by_a_sign_and_has_colours_for_the_dark() -> None:
    text = page.document("x", [])
    assert '.held::before { content: "✓ "; }' in text
    assert '.missed::before { content: "✕ "; }' in text
    assert "prefers-color-scheme: dark" in text
