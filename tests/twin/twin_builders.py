"""Builders for tests of the twin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from holdfast.domain.service import Slo
from holdfast.simulator.twin.fleet import Workload

SLO = Slo(ttft_seconds=2.0, tpot_seconds=0.1, objective=0.99, window_seconds=3600.0)


def workload(
    at: ArrayLike, prompts: Sequence[int], outputs: Sequence[int], cached: Sequence[int] | None = None
) -> Workload:
    """Requests from plain numbers."""
    moments = np.asarray(at, np.float64)
    zeros = np.zeros(len(moments), np.int64)
    return Workload(
        moments,
        np.asarray(prompts, np.int64),
        np.asarray(outputs, np.int64),
        zeros if cached is None else np.asarray(cached, np.int64),
    )
