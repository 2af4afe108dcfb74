"""Settings of an activator at its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from yarl import URL

if TYPE_CHECKING:
    from holdfast.listener.connections import Bounds


@dataclass(frozen=True, slots=True)
class Options:
    """`upstream` is the only address that is ever connected to.

    `models` are listed to any client while no engine runs; none if they are not public.
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
