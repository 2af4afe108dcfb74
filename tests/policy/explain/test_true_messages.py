"""No message contradicts the numbers of its own decision."""

from __future__ import annotations

import math
import re

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.api.quantities import format_rate
from holdfast.policy.estimate.demand import demand_rps, replicas_for
from holdfast.policy.estimate.forecast import Forecast
from holdfast.policy.estimate.slo_budget import SloState
from holdfast.policy.explain.messages import describe, reason_for
from holdfast.policy.transition.sizes import decide_sizes
from tests.policy.explain.test_messages import needing
from tests.policy.views import view

RATES = st.floats(0.0, 200.0)


@given(RATES, RATES, st.floats(0.0, 500.0), st.booleans(), st.none() | st.floats(-5.0, 1.0))
@example(level=4.3, wanted=3.9, late=0.0, starting=False, remaining=-1.91)  # said "error budget to spare"
@example(level=12.0, wanted=3.0, late=0.0, starting=False, remaining=0.5)  # said "0 requests queued"
@example(level=24.0, wanted=3.0, late=0.2, starting=True, remaining=0.5)
def test_no_message_contradicts_its_numbers(
    level: float, wanted: float, late: float, starting: bool, remaining: float | None
) -> None:
    forecast = Forecast(level, wanted, wanted, 0.05, 45.0)
    asked = demand_rps(forecast, late, 0.5, starting)
    attainment = None if remaining is None else 1.0 - 0.01 * (1.0 - remaining)
    seen = view(
        **needing(min(10, replicas_for(asked or 0.0, 5.0))),
        forecast=forecast,
        demand_rps=asked,
        backlog_requests=late,
        starting=starting,
        slo=SloState(attainment, remaining, False, 1000.0),
    )
    sizes = decide_sizes(seen)
    told, reason = describe(seen, sizes), str(reason_for(seen, sizes))
    queued = re.search(r"(\d+) requests? queued", told)
    assert queued is None or int(queued[1]) == math.ceil(late) >= 1
    assert reason != "BacklogToDrain" or queued is not None
    assert "to spare" not in told or (remaining is not None and remaining > 0.0)
    lenient = re.search(r"([\d.]+) req/s arrive, sized for ([\d.]+) req/s", told)
    if lenient is not None and asked is not None:
        assert lenient[2] == format_rate(min(asked, level))
