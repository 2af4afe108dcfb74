"""The share of refused requests that come back: what is learned from episodes that more replicas end.

    python docs/designs/scripts/retry_share.py [--quick]

Clients send 20 new requests/s, the replicas carry 15, and a share of all refused requests is sent again at once. After
five looks of 30 s there are more replicas, and nothing is refused any more. Arrivals are Poisson. The share that was
learned stands after 1, 2, 4 and 8 such episodes; each counts by half.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.domain.valid_traffic import judge
from holdfast.policy.estimate.retries import Retries, learn_retries

LOOK_SECONDS, NEW_RPS, CARRIED_RPS, LOOKS = 30.0, 20.0, 15.0, 5


def looked_at(memory: Retries, arrived: float, refused: float, serving: int, now: float) -> Retries:
    """What is believed after one more look."""
    counts = AcceleratorTraffic(finished=arrived - refused, rejected=refused)
    seen = judge(Traffic(SignalState.FRESH, "", LOOK_SECONDS, 1.0, (("gpu", counts),)))
    return learn_retries(memory, seen, serving, now)


def learned(share: float, episodes: int, seed: int) -> float:
    """The share that is believed after so many episodes."""
    random, memory, now = np.random.default_rng(seed), Retries(), 0.0
    for _ in range(episodes):
        back = 0.0
        for look in range(2 * LOOKS):
            now += LOOK_SECONDS
            arrived = float(random.poisson(NEW_RPS * LOOK_SECONDS)) + back
            short = look < LOOKS
            refused = max(0.0, arrived - CARRIED_RPS * LOOK_SECONDS) if short else 0.0
            back = share * refused if look < LOOKS - 1 else 0.0
            memory = looked_at(memory, arrived, refused, 3 if short else 5, now)
    return memory.share


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what is believed of each share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds only")
    seeds = range(2 if parser.parse_args(arguments).quick else 200)
    print("share that comes back: mean share believed after 1, 2, 4 and 8 episodes (5 % and 95 % after 8)")
    for share in (0.0, 0.3, 0.6, 0.9):
        means = [float(np.mean([learned(share, episodes, seed) for seed in seeds])) for episodes in (1, 2, 4, 8)]
        low, high = np.percentile([learned(share, 8, seed) for seed in seeds], [5, 95])
        print(f"  {share:g}: " + ", ".join(f"{mean:.2f}" for mean in means) + f" ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
