"""Over how long a rate is averaged before it is sized for."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.maths.trend import Cell, highest_rps
from holdfast.policy.estimate.forecast import smoothed_seconds

CELLS = st.lists(
    st.tuples(st.floats(1.0, 20.0), st.floats(0.0, 100.0)).map(lambda pair: Cell(0.0, *pair)), min_size=1, max_size=12
)


@given(CELLS, st.floats(1.0, 120.0))
def test_the_highest_smoothed_rate_lies_between_the_mean_and_the_highest_cell(
    cells: list[Cell], seconds: float
) -> None:
    mean = sum(cell.arrivals for cell in cells) / sum(cell.seconds for cell in cells)
    highest = highest_rps(cells, seconds)
    assert highest <= max(cell.rate_rps for cell in cells) * (1 + 1e-9)
    assert highest >= mean * (1 - 1e-9) or seconds < sum(cell.seconds for cell in cells)


def test_a_burst_shorter_than_the_averaging_counts_only_by_its_share() -> None:
    burst = [Cell(0.0, 6.0, 12.0), Cell(0.0, 6.0, 60.0), Cell(0.0, 6.0, 12.0), Cell(0.0, 6.0, 12.0)]
    assert highest_rps(burst, 6.0) == 10.0
    assert highest_rps(burst, 24.0) == 4.0


def test_a_step_that_lasts_counts_whole() -> None:
    step = [Cell(0.0, 6.0, 12.0)] * 4 + [Cell(0.0, 6.0, 36.0)] * 4
    assert highest_rps(step, 24.0) == 6.0


@given(st.floats(0.0, 300.0), st.floats(0.0, 3600.0))
def test_averaging_is_never_shorter_than_what_was_counted(interval: float, lead: float) -> None:
    assert smoothed_seconds(interval, lead) >= max(interval, 0.5 * lead)
