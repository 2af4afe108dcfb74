"""The lower bound of the good share where no plugin counts: how far it lies below the true share.

    python docs/designs/scripts/goodput_bounds.py [--quick]

Stock vLLM has one histogram per objective, so that only the shares of late TTFT and late TPOT are known. The real code
takes each miss for another request (the lower Frechet bound). `together` is the chance that a request with a late TTFT
has a late TPOT as well: the more the misses coincide, the more requests are counted bad twice.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.domain.valid_traffic import judge
from holdfast.policy.estimate.slo_budget import judge_requests


def shares(requests: int, late_ttft: float, late_tpot: float, together: float, seed: int) -> tuple[float, float]:
    """The true share of good requests, and the one that is believed."""
    random = np.random.default_rng(seed)
    ttft = random.random(requests) < late_ttft
    alone = (late_tpot - late_ttft * together) / (1.0 - late_ttft)
    tpot = random.random(requests) < np.where(ttft, together, alone)
    counts = AcceleratorTraffic(
        finished=float(requests),
        ttft_count=float(requests),
        ttft_within=float((~ttft).sum()),
        tpot_count=float(requests),
        tpot_within=float((~tpot).sum()),
    )
    seen = judge(Traffic(SignalState.FRESH, "", 30.0, 1.0, (("gpu", counts),)))
    verdicts, _ = judge_requests(seen, 1.0, 0.0)
    return float((~ttft & ~tpot).mean()), 1.0 - verdicts.bad_share


def main(arguments: Sequence[str] | None = None) -> None:
    """Print true and believed shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    requests = 2_000 if parser.parse_args(arguments).quick else 1_000_000
    print("late TTFT, late TPOT, together: true good share, believed good share")
    for late_ttft, late_tpot in ((0.005, 0.005), (0.01, 0.02), (0.1, 0.2)):
        for together in (0.0, 0.5, 1.0):
            true, believed = shares(requests, late_ttft, late_tpot, together, 5)
            print(f"  {late_ttft:g}, {late_tpot:g}, {together:g}: {true:.4f}, {believed:.4f}")


if __name__ == "__main__":
    main()
