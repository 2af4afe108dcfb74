"""Settings of an activator at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from yarl import URL

if TYPE_CHECKING:
    from holdfast.listener.connections import Bounds


@dataclass(frozen=True, slots=True)
class Options:
    """`upstream` is the only address that is ever connected to.

    `models` are listed to any client while no engine runs; none if they are not public. `patient` are the classes that
    a header may claim whose first token is due later than the service's, with that time: infinite for Batch.
    """

    upstream: URL
    models: tuple[str, ...] = ()
    port: int = 8000
    admin_port: int = 8081
    host: str = "0.0.0.0"  # noqa: S104  # a pod's address
    most_requests: int = 512
    most_bytes: int = 64 * 2**20
    longest_seconds: float = 900.0
    front: Bounds | None = None
    patient: Mapping[str, float] = field(default_factory=dict)
