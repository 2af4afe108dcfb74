"""The flags of vllm-router: how often a request is sent."""

from __future__ import annotations

from holdfast.router.options import Options
from holdfast.router.replicas import PROBE_SECONDS


def test_a_request_is_sent_three_times_and_the_last_time_after_a_dead_replica_has_been_removed() -> None:
    flags = dict(flag.partition("=")[::2] for flag in Options("chat-replicas.prod.svc").flags())
    assert flags["--retry-max-retries"] == "3"
    first, growth = (float(flags[f"--retry-{name}"]) for name in ("initial-backoff-ms", "backoff-multiplier"))
    jitter = 0.2  # vllm-router's own, either way
    assert (1 - jitter) * first * (1 + growth) / 1000.0 > PROBE_SECONDS
