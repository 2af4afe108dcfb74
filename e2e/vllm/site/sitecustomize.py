"""Python imports this by its name: whoever would yield the processor while it waits, again and again, sleeps instead.

vLLM's engine and worker wait for each other's steps by yielding. On Linux 6.18 that puts them so far behind whatever
else runs that with two other processes on two cores an engine, and what it answers, stood still for up to 13 seconds.
Asleep for a moment they have their turn at once. NIXL polls without a pause, in a thread that takes a core: it runs
when nothing else does. With HOLDFAST_TEST_FORKS, engine and worker are forked: imports are half of what a start takes.
"""

import importlib.util
import multiprocessing
import os
import sys
import time

_MOMENT_SECONDS = 50e-6
_NIXL = "nixl_cu12._api"

os.sched_yield = lambda: time.sleep(_MOMENT_SECONDS)

if "HOLDFAST_TEST_FORKS" in os.environ:
    _stock_context = multiprocessing.get_context
    # vLLM wants "spawn" on a CPU, whatever its own variable says.
    multiprocessing.get_context = lambda method=None: _stock_context("fork" if method == "spawn" else method)


class _Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """NIXL's module, whose agents leave the processor to others."""
        if name != _NIXL:
            return None
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (execute(module), _calm(module.nixl_agent))
        return spec


def _calm(agent):
    """Threads that an agent starts to poll have the lowest priority."""
    stock = agent.__init__

    def init(self, *given, **named):
        before = set(os.listdir("/proc/self/task"))
        stock(self, *given, **named)
        for thread in set(os.listdir("/proc/self/task")) - before:
            with open(f"/proc/self/task/{thread}/comm") as name:
                polls = name.read().strip() != "async"
            if polls:
                os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))

    agent.__init__ = init


sys.meta_path.insert(0, _Finder)
