"""Python imports this by its name: whoever would yield the processor while it waits, again and again, sleeps instead.

vLLM's engine and worker wait for each other's steps by yielding. On Linux 6.18 that puts them so far behind whatever
else runs that with two other processes on two cores an engine, and what it answers, stood still for up to 13 seconds.
Asleep for a moment they have their turn at once.
"""

import os
import time

_MOMENT_SECONDS = 50e-6

os.sched_yield = lambda: time.sleep(_MOMENT_SECONDS)
