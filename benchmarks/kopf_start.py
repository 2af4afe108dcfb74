"""What the two changes to kopf's start save: waking tasks, and the bodies of watched objects.

    python benchmarks/kopf_start.py [--quick]

A start of kopf is imitated with kopf's own classes: every object has a toggle, and a task that waits until all kinds
are listed. Bodies are pods of engines as the API server shows them. Processor seconds and MiB of one process.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import gc
import json
import platform
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import kopf
from kopf._cogs.aiokits import aiotoggles

from holdfast.observe.objects import body_pruning
from holdfast.runtime.toggles import CalmToggles


async def start(toggles: aiotoggles.ToggleSet, objects: int) -> float:
    """Processor seconds until a kind of so many objects is listed and every object has gone on."""
    kind, tasks, begun = await toggles.make_toggle(name="kind"), [], time.process_time()

    async def one(toggle: aiotoggles.Toggle) -> None:
        await toggles.drop_toggle(toggle)
        await toggles.wait_for(True)

    for number in range(objects):
        tasks.append(asyncio.create_task(one(await toggles.make_toggle(name=str(number)))))
        await asyncio.sleep(0)
    await toggles.drop_toggle(kind)
    await asyncio.gather(*tasks)
    return time.process_time() - begun


def waking(sizes: tuple[int, ...]) -> None:
    """Print the time of a start with kopf's own set of toggles, and with ours."""
    for objects in sizes:
        stock = asyncio.run(start(aiotoggles.ToggleSet(all), objects))
        calm = asyncio.run(start(CalmToggles(all, lambda: None), objects))
        print(
            f"start with {objects} objects: kopf {stock:.2f} s, with toggles.py {calm:.2f} s, ratio {stock / calm:.0f}"
        )


def a_pod(number: int) -> dict[str, Any]:
    """A pod of an engine: 48 environment variables, 12 conditions and a managedFields entry of each manager."""
    env = [{"name": f"VARIABLE_{i}", "value": f"value-{number}-{i}" * 4} for i in range(48)]
    fields = {"f:spec": {f"k:{{name={i}}}": {"f:value": {}, "f:name": {}} for i in range(96)}}
    return {
        "metadata": {"name": f"chat-{number}", "uid": str(number), "managedFields": [copy.deepcopy(fields)] * 3},
        "spec": {"containers": [{"name": "engine", "env": env, "args": [f"--flag-{i}=1" for i in range(24)]}]},
        "status": {"conditions": [{"type": f"type-{i}", "status": "True", "message": "m" * 80} for i in range(12)]},
    }


async def _index(body: kopf.Body, **_: Any) -> str:
    return str(body["metadata"]["name"])


def held(pods: int, index: Callable[..., Any]) -> float:
    """MiB of bodies that are still held after all of them were indexed."""
    gc.collect()
    tracemalloc.start()
    bodies = [json.loads(json.dumps(a_pod(number))) for number in range(pods)]

    async def read() -> None:
        for body in bodies:
            await index(body=body)

    asyncio.run(read())
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / 2**20


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller numbers, for the test")
    quick = parser.parse_args().quick
    print(f"kopf start, Python {platform.python_version()}, {platform.machine()}")
    waking((50, 100) if quick else (500, 1000, 2000))
    pods = 100 if quick else 4000
    whole, pruned = held(pods, _index), held(pods, body_pruning.after(_index, "spec", "status"))
    print(f"bodies of {pods} pods: {whole:.1f} MiB whole, {pruned:.1f} MiB pruned, ratio {whole / pruned:.0f}")


if __name__ == "__main__":
    main()
