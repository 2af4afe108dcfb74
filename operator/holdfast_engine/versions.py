"""The releases of vLLM whose scheduler the plugin knows: the interface is not public and may change with any other."""

from __future__ import annotations

import re

SUPPORTED = frozenset({(0, 32), (0, 33)})


def is_supported(version: str) -> bool:
    """Whether the plugin knows the scheduler of this release of vLLM.

    The tests run 0.32. Of 0.33 the source was read, and they check its types (`e2e/engine`).
    """
    found = re.match(r"(\d+)\.(\d+)\.\d+", version)
    return found is not None and (int(found[1]), int(found[2])) in SUPPORTED
