"""How long it takes to share out GPUs that do not suffice, one claim after another and by exchanges, on one core.

.venv/bin/python benchmarks/fleet_speed.py [--services 5000] [--planned 200] [--repeat 5]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import AcceleratorOption, ServiceKey
from holdfast.policy.allocation.capacity_pool import capacity_pools
from holdfast.policy.allocation.fleet import allocate
from holdfast.policy.allocation.plan import Sharing, share, share_out
from holdfast.policy.capacity_request import CapacityRequest
from holdfast.policy.memory import Fleet
from holdfast.policy.settings import PolicySettings
from tests.builders import NOW, node

ACCELERATORS = 5
GPUS_PER_NODE = 8


def requests(services: int, chance: random.Random) -> dict[ServiceKey, CapacityRequest]:
    """Services with three priorities and replicas of one to four GPUs, half of which run."""
    found = {}
    for index in range(services):
        kind, want, rate = index % ACCELERATORS, chance.randint(1, 8), chance.uniform(0.5, 20.0)
        option = AcceleratorOption(
            f"gpu{kind}", gpus_per_replica=chance.choice((1, 1, 2, 4)), node_selector=(("kind", str(kind)),)
        )
        key = ServiceKey("prod", f"s{index:05}")
        running, demand, priority = want // 2, chance.uniform(0.3, 1.2) * rate * want, chance.randint(0, 2)
        found[key] = CapacityRequest(key, option, want, 1, rate, demand, priority, running, short=running < want)
    return found


def inventory(wanted: dict[ServiceKey, CapacityRequest], share: float) -> Inventory:
    """Nodes of every accelerator with that share of the GPUs that are wanted."""
    gpus = sum(request.gpus(request.want) for request in wanted.values()) * share / ACCELERATORS
    return Inventory(
        tuple(
            node(f"n{kind}-{index:04}", GPUS_PER_NODE, kind=str(kind))
            for kind in range(ACCELERATORS)
            for index in range(int(gpus / GPUS_PER_NODE))
        )
    )


def mobile(request: CapacityRequest, chance: random.Random) -> CapacityRequest:
    """The claim, with every other accelerator as one that it could move to."""
    there = []
    for kind in range(ACCELERATORS):
        size, rate = chance.choice((1, 1, 2, 4)), request.rate_rps * chance.uniform(0.5, 2.0)
        option = AcceleratorOption(
            f"gpu{kind}", gpus_per_replica=size, node_selector=(("kind", str(kind)),), cost_per_gpu_hour=1.0 + kind
        )
        want = max(1, math.ceil(request.demand_rps / rate))
        if option.name != request.option.name:
            there.append(replace(request, option=option, want=want, least=want, rate_rps=rate, running=0, short=False))
    return replace(request, elsewhere=tuple(there))


def uneven(wanted: dict[ServiceKey, CapacityRequest], share: float, chance: random.Random) -> Inventory:
    """Nodes with that share of the GPUs that are wanted, more of some accelerators than of others."""
    gpus = sum(request.gpus(request.want) for request in wanted.values()) * share / ACCELERATORS
    return Inventory(
        tuple(
            node(f"n{kind}-{index:04}", GPUS_PER_NODE, kind=str(kind))
            for kind in range(ACCELERATORS)
            for index in range(int(gpus * chance.uniform(0.4, 1.6) / GPUS_PER_NODE))
        )
    )


def in_turn(services: int, repeat: int, seed: int) -> None:
    wanted = requests(services, random.Random(seed))
    for name, part in (("three quarters of the GPUs", 0.75), ("enough GPUs", 1.5)):
        seconds = []
        for _ in range(repeat):
            nodes = inventory(wanted, part)
            began = time.process_time()
            allocations, _ = allocate(wanted, Fleet(), nodes, NOW, PolicySettings())
            seconds.append(time.process_time() - began)
        print(f"{services} services x {ACCELERATORS} accelerators, {name}: {len(allocations)} give way,", end=" ")
        print(f"CPU milliseconds median {statistics.median(seconds) * 1e3:.0f}, worst {max(seconds) * 1e3:.0f}")


def exchanged(services: int, seed: int) -> None:
    """Good requests/s of the highest priority and of all, with exchanges and in turn, of one random fleet."""
    chance = random.Random(seed)
    wanted = {key: mobile(request, chance) for key, request in requests(services, chance).items()}
    nodes = uneven(wanted, 0.75, chance)
    scarce = [pool for pool in capacity_pools(wanted.values(), nodes) if pool.wanted > pool.gpus]
    began = time.process_time()
    ours = share(scarce, wanted, nodes)
    cpu = time.process_time() - began
    theirs = Sharing(share_out(scarce))
    first, all_of_them = (good(wanted, ours, least) / good(wanted, theirs, least) - 1.0 for least in (2, 0))
    print(
        f"{services} services x {ACCELERATORS}, seed {seed}: {len(theirs.replicas)} compete, {len(ours.moved)} move,"
        f" good requests {all_of_them:+.1%} (highest priority {first:+.1%}) against in turn; {cpu * 1e3:.0f} CPU ms"
    )


def good(wanted: dict[ServiceKey, CapacityRequest], sharing: Sharing, least_priority: int) -> float:
    """Good requests/s of those that compete, from a priority on."""
    staying = sum(
        wanted[key].good_rps(count) for key, count in sharing.replicas.items() if wanted[key].priority >= least_priority
    )
    return staying + sum(to.good_rps(to.want) for to in sharing.moved.values() if to.priority >= least_priority)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=5000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--exchanged", type=int, default=200, help="services of the fleets with exchanges")
    options = parser.parse_args()
    in_turn(options.services, options.repeat, options.seed)
    for seed in range(options.seed, options.seed + options.repeat):
        exchanged(options.exchanged, seed)


if __name__ == "__main__":
    main()
