"""The integer program solved by HiGHS, which is loaded when first asked: most fleets never need it.

For each priority first without whole numbers, which is fast, and says where most services go: the surest half stays
decided, until few are left. Those are searched with whole numbers. What that gives is not the optimum; with hundreds
of services it takes a tenth of the time that searching for all of them does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.policy.allocation.program import Level, Program, Row, total

MOST_ITERATIONS = 3000
"""Simplex iterations for all priorities together, about 0.2 s; what takes more is shared out in turn.

Not a time limit: on a slow machine the same snapshot would get another decision.
"""

SLACK = 1e-7
"""What rounding may take from a service of higher priority, relative."""

MOST_UNDECIDED = 4
"""Services whose moves are left to the search with whole numbers."""

OPTIONS: Mapping[str, object] = {
    "output_flag": False,
    "threads": 1,
    "parallel": "off",
    "random_seed": 0,
    "mip_rel_gap": 1e-3,
    "mip_feasibility_tolerance": 1e-7,  # what fits here must fit the relaxed program of the next level
    "mip_max_nodes": 100,  # unlike time, this ends alike on every machine
}

Values = npt.NDArray[np.float64]


def solve(program: Program, start: Sequence[float]) -> Sequence[float] | None:
    """Maximise one level after another; None without the library, out of iterations, or in any doubt."""
    try:
        import highspy
    except ImportError:
        return None
    solver, values, budget = _solver(highspy, program), np.asarray(start, dtype=np.float64), _Budget()
    for level in program.levels:
        found = _maximised(highspy, solver, program, level, values, budget)
        if found is None:
            return None
        values = found
        for terms in level.good:
            _add(solver, _at_least(terms, values))
    return [float(value) for value in values]


@dataclass
class _Budget:
    """Simplex iterations that are left for all runs together."""

    left: int = field(default_factory=lambda: MOST_ITERATIONS)


def _maximised(
    highspy: Any, solver: Any, program: Program, level: Level, before: Values, budget: _Budget
) -> Values | None:
    """Return the better of what is found and what was known before; None in doubt, or without iterations."""
    done, worth = highspy.HighsModelStatus, _dense(level.worth, before.size)
    solver.changeColsCost(before.size, np.arange(before.size, dtype=np.int32), worth)
    undecided: list[Sequence[int]] = list(program.moves)
    while len(undecided) > MOST_UNDECIDED:
        found = _run(solver, relaxed=True, budget=budget)
        if solver.getModelStatus() != done.kOptimal:
            break
        undecided = _decide_most(solver, undecided, found)
    else:  # with more undecided services the search takes up to a hundred times as long
        found = _run(solver, relaxed=False, budget=budget)
    status = solver.getModelStatus()
    _bound(solver, [column for moves in program.moves for column in moves], lower=0.0, upper=1.0)
    if status == done.kInfeasible:
        return before
    if status not in (done.kOptimal, done.kSolutionLimit) or found.size != before.size or budget.left <= 0:
        return None
    return found if math.fsum(worth * found) > math.fsum(worth * before) else before


def _decide_most(solver: Any, undecided: Sequence[Sequence[int]], relaxed: Values) -> list[Sequence[int]]:
    """Send the surest half of the services, and all that are sure, where most of each goes."""
    shares = [np.asarray([1.0 - relaxed[list(moves)].sum(), *relaxed[list(moves)]]) for moves in undecided]
    order = sorted(range(len(shares)), key=lambda index: -shares[index].max())
    sure = sum(share.max() > 1.0 - 1e-6 for share in shares)
    taken = order[: max(sure, (len(order) + 1) // 2)]
    for index in taken:
        to = int(shares[index].argmax())
        for place, column in enumerate(undecided[index], start=1):
            _bound(solver, [column], lower=float(place == to), upper=float(place == to))
    return [undecided[index] for index in order if index not in set(taken)]


def _run(solver: Any, relaxed: bool, budget: _Budget) -> Values:
    solver.setOptionValue("solve_relaxation", relaxed)
    solver.setOptionValue("simplex_iteration_limit", max(0, budget.left))
    solver.run()
    budget.left -= max(0, solver.getInfo().simplex_iteration_count)
    return np.asarray(solver.getSolution().col_value)


def _bound(solver: Any, columns: Sequence[int], lower: float, upper: float) -> None:
    size = len(columns)
    solver.changeColsBounds(size, np.asarray(columns, np.int32), np.full(size, lower), np.full(size, upper))


def _at_least(terms: Mapping[int, float], values: Values) -> Row:
    """What a service makes good now, lower priorities leave to it."""
    good = total(terms, [float(value) for value in values])
    return Row({column: -factor for column, factor in terms.items()}, SLACK * max(1.0, good) - good)


def _solver(highspy: Any, program: Program) -> Any:
    size = len(program.upper)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = size, len(program.rows)
    model.sense_ = highspy.ObjSense.kMaximize
    model.col_cost_, model.col_lower_ = np.zeros(size), np.zeros(size)
    model.col_upper_ = np.asarray(program.upper)
    model.row_lower_ = np.full(len(program.rows), -math.inf)
    model.row_upper_ = np.asarray([row.upper for row in program.rows])
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.cumsum([0, *(len(row.terms) for row in program.rows)])
    model.a_matrix_.index_ = np.asarray([column for row in program.rows for column in row.terms])
    model.a_matrix_.value_ = np.asarray([factor for row in program.rows for factor in row.terms.values()])
    whole, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    model.integrality_ = [real if column in program.real else whole for column in range(size)]
    solver = highspy.Highs()
    for name, value in OPTIONS.items():
        solver.setOptionValue(name, value)
    solver.passModel(model)
    return solver


def _add(solver: Any, row: Row) -> None:
    columns, factors = np.fromiter(row.terms, np.int32), np.fromiter(row.terms.values(), np.float64)
    solver.addRow(-math.inf, row.upper, columns.size, columns, factors)


def _dense(terms: Mapping[int, float], size: int) -> Values:
    dense = np.zeros(size)
    dense[list(terms)] = list(terms.values())
    return dense
