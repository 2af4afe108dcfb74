"""Settings of the policy, for the operator of Holdfast."""

from __future__ import annotations

from holdfast.domain.value import value


@value
class PolicySettings:
    """Times in seconds; the defaults suit clouds whose node pools grow in minutes.

    `provisioning_seconds`: how long a pod may stay unschedulable before its accelerator counts as unavailable.
    `failing_seconds`, `starting_seconds`: how long an accelerator may have only failing, or only starting, replicas.
    `retry_seconds`: first backoff of an unavailable accelerator; it doubles up to `longest_retry_seconds`.
    `cold_start_seconds`: assumed until a cold start was observed. `drain_seconds`: how long a replica takes to drain.
    `idle_seconds`: idle time before scale-to-zero, until the usual pauses of the traffic are known.
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
        """How long services may take to free accelerators: start replicas elsewhere first, then drain."""
        return self.provisioning_seconds + self.cold_start_seconds + self.drain_seconds
