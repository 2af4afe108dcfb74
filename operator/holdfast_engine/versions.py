"""The releases of vLLM whose scheduler the plugin knows: the interface is not public and may change with any other."""

from __future__ import annotations

import re

SUPPORTED = frozenset({(0, 32), (0, 33)})


def is_supported(version: str) -> bool:
    """Whether the scheduler interface of this release of vLLM was read and tried."""
    found = re.match(r"(\d+)\.(\d+)\.\d+", version)
    return found is not None and (int(found[1]), int(found[2])) in SUPPORTED
