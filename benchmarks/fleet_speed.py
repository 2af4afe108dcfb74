"""How long it takes to share out GPUs that do not suffice: N services on five accelerators, on one core.

.venv/bin/python benchmarks/fleet_speed.py [--services 5000] [--repeat 5]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from holdfast.domain.service import AcceleratorOption, ServiceKey
from holdfast.policy.fleet import arbitrate
from holdfast.policy.fleet_claims import Claim
from holdfast.policy.inventory import Inventory
from holdfast.policy.settings import PolicySettings
from tests.builders import NOW, node

ACCELERATORS = 5
GPUS_PER_NODE = 8


def claims(services: int, chance: random.Random) -> dict[ServiceKey, Claim]:
    """Services with three priorities and replicas of one to four GPUs, half of which run."""
    found = {}
    for index in range(services):
        kind, want, rate = index % ACCELERATORS, chance.randint(1, 8), chance.uniform(0.5, 20.0)
        option = AcceleratorOption(
            f"gpu{kind}", gpus_per_replica=chance.choice((1, 1, 2, 4)), node_selector=(("kind", str(kind)),)
        )
        key = ServiceKey("prod", f"s{index:05}")
        running, demand, priority = want // 2, chance.uniform(0.3, 1.2) * rate * want, chance.randint(0, 2)
        found[key] = Claim(key, option, want, 1, rate, demand, priority, running, short=running < want)
    return found


def inventory(wanted: dict[ServiceKey, Claim], share: float) -> Inventory:
    """Nodes of every accelerator with that share of the GPUs that are wanted."""
    gpus = sum(claim.gpus(claim.want) for claim in wanted.values()) * share / ACCELERATORS
    return Inventory(
        tuple(
            node(f"n{kind}-{index:04}", GPUS_PER_NODE, kind=str(kind))
            for kind in range(ACCELERATORS)
            for index in range(int(gpus / GPUS_PER_NODE))
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=5000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    wanted = claims(options.services, random.Random(options.seed))
    for name, share in (("three quarters of the GPUs", 0.75), ("enough GPUs", 1.5)):
        seconds = []
        for _ in range(options.repeat):
            nodes = inventory(wanted, share)
            began = time.process_time()
            grants, _ = arbitrate(wanted, (), nodes, NOW, PolicySettings())
            seconds.append(time.process_time() - began)
        print(f"{options.services} services x {ACCELERATORS} accelerators, {name}: {len(grants)} give way,", end=" ")
        print(f"CPU milliseconds median {statistics.median(seconds) * 1e3:.0f}, worst {max(seconds) * 1e3:.0f}")


if __name__ == "__main__":
    main()
