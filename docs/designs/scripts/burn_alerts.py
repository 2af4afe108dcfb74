"""Burn alerts: their thresholds, and how long after an outage begins and ends they begin and end.

    python docs/designs/scripts/burn_alerts.py [--quick]

The real budget gets 10 req/s, a look every 30 s. Nothing is bad for a whole window, then a share of all requests for a
while, then nothing again. `-` is an alert that does not begin.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from holdfast.domain.burn_rate import FAST, SLOW
from holdfast.domain.service import Slo
from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.domain.valid_traffic import judge
from holdfast.policy.estimate.slo_budget import Budget, account, burns

LOOK_SECONDS, RATE_RPS, BEGIN = 30.0, 10.0, 1_000_000.0


def times(slo: Slo, bad_share: float, minutes: float) -> dict[str, tuple[float | None, float | None]]:
    """Seconds after the outage began, and after it ended, at which each alert begins and ends."""
    memory, begins, lasts = Budget(), slo.window_seconds, 60.0 * minutes
    on: dict[str, float] = {}
    off: dict[str, float] = {}
    seconds = 0.0
    while seconds < begins + lasts + 0.25 * slo.window_seconds:
        seconds += LOOK_SECONDS
        bad = bad_share if begins < seconds <= begins + lasts else 0.0
        count = RATE_RPS * LOOK_SECONDS
        counts = AcceleratorTraffic(
            finished=count, ttft_count=count, ttft_within=count * (1.0 - bad), tpot_count=count, tpot_within=count
        )
        seen = judge(Traffic(SignalState.FRESH, "", LOOK_SECONDS, 1.0, (("gpu", counts),)))
        memory = account(memory, seen, slo, BEGIN + seconds)
        for name, window in (("fast", FAST), ("slow", SLOW)):
            if burns(memory, slo, BEGIN + seconds, window):
                on.setdefault(name, seconds - begins)
                off.pop(name, None)
            elif name in on:
                off.setdefault(name, seconds - begins - lasts)
    return {name: (on.get(name), off.get(name)) for name in ("fast", "slow")}


def text(seconds: float | None) -> str:
    """Seconds, or that there are none."""
    return "-" if seconds is None else f"{seconds:.0f} s"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print thresholds and times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the window of an hour only")
    windows = (3600.0,) if parser.parse_args(arguments).quick else (3600.0, 86_400.0, 7 * 86_400.0)
    for window in windows:
        for objective in (0.95, 0.99):
            slo = Slo(ttft_seconds=2.0, tpot_seconds=0.1, objective=objective, window_seconds=window)
            limits = f"fast {FAST.threshold(slo):.1f}, slow {SLOW.threshold(slo):.1f}"
            print(f"window {window / 3600.0:g} h, objective {objective:g}: burn rates {limits}")
            for bad in (0.02, 0.2):
                minutes = window / 60.0 / 20.0
                found = times(slo, bad, minutes)
                told = "; ".join(f"{name} on {text(on)}, off {text(off)}" for name, (on, off) in found.items())
                print(f"  {bad:.0%} bad for {minutes:g} min: {told}")


if __name__ == "__main__":
    main()
