"""The sweep over graphs and hosts, at engines that lost their goodput: rates are fixed, so that nothing is searched."""

import pytest

from benchmarks.launch_sweep import Engine, light_row, overload_row
from holdfast.enginemodel.host import ASYNCHRONOUS, SYNCHRONOUS, GraphMode


@pytest.mark.parametrize(
    ("host", "depth", "load", "best_rps"),
    [(1.0, ASYNCHRONOUS, 0.8, 42.8), (1.0, SYNCHRONOUS, 0.8, 32.4), (2.0, ASYNCHRONOUS, 0.8, 19.4)],
)
def test_prompts_that_each_cost_a_launch_are_not_cut_into_more_of_them(
    host: float, depth: int, load: float, best_rps: float
) -> None:
    line, held = light_row(Engine(GraphMode.FULL_DECODE_ONLY, True, host, depth, requests=600), load, best_rps)
    assert held, line


@pytest.mark.parametrize("reported", [True, False])
@pytest.mark.parametrize("host", [0.7, 1.0])
def test_an_overload_after_a_calm_run_keeps_what_the_engine_carries(host: float, reported: bool) -> None:
    line, held = overload_row(Engine(reported=reported, host=host, requests=2100), 44.2)
    assert held, line
