"""What an operator of Holdfast may set about decisions."""

from __future__ import annotations

from holdfast.domain.value import value


@value
class PolicySettings:
    """Times in seconds; the defaults suit clouds whose node pools grow in minutes.

    `provisioning_seconds`: how long a pod may stay unschedulable before its accelerator counts as unavailable.
    `failing_seconds`, `starting_seconds`: how long an accelerator may have only failing, only starting replicas.
    `retry_seconds`: after how long an unavailable accelerator is tried again; doubles up to `longest_retry_seconds`.
    `cold_start_seconds`: assumed until a cold start was seen. `drain_seconds`: how long a replica takes to leave.
    `idle_seconds`: after how long without a request no replica runs, until the pauses of the traffic are known.
    """

    provisioning_seconds: float = 300.0
    failing_seconds: float = 60.0
    starting_seconds: float = 1800.0
    retry_seconds: float = 600.0
    longest_retry_seconds: float = 6 * 3600.0
    cold_start_seconds: float = 90.0
    drain_seconds: float = 30.0
    idle_seconds: float = 600.0

    @property
    def yielding_seconds(self) -> float:
        """How long others may take to give up accelerators: at most they start elsewhere first, and drain then."""
        return self.provisioning_seconds + self.cold_start_seconds + self.drain_seconds
