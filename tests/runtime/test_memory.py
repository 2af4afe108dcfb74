"""What is read once is left alone by the collector, and still let go of when nobody needs it."""

import gc
import weakref

from holdfast.runtime import memory


class Thing:
    """Something that can be watched."""


def test_what_is_there_when_settled_is_no_longer_looked_at_and_still_freed() -> None:
    memory.frugal_allocation()
    thing = Thing()
    memory.settle()
    try:
        assert gc.get_freeze_count() > 0
        seen = weakref.ref(thing)
        del thing
        assert seen() is None
    finally:
        gc.unfreeze()
