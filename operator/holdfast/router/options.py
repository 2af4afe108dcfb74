"""Settings of a router at its start."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.rendered.names import PORT, ROUTER_METRICS_PORT

POLICIES = ("round_robin", "consistent_hash")
"""In turn, or the same replica for the same x-session-id (else x-user-id, x-tenant-id, `user` of the body)."""


@dataclass(frozen=True, slots=True)
class Options:
    """`replicas` is a DNS name with one address for each replica, `prefill` the same of a prefill pool, or empty.

    `model` is what requests call the model, needed with `prefill` only.
    """

    replicas: str
    replica_port: int = PORT
    port: int = PORT
    metrics_port: int = ROUTER_METRICS_PORT
    linger_seconds: float = 15.0
    policy: str = POLICIES[0]
    prefill: str = ""
    model: str = ""

    def flags(self) -> tuple[str, ...]:
        """vllm-router's flags.

        Of 0.1.17's policies only cache_aware counts the requests in hand, and that one asks an engine for the tokens of
        each prompt first; sticky_least_loaded remembers sessions in each router pod by itself, so two pods would send
        one session to two replicas. The circuit breaker stays off: it would shut out replicas that answer 503 because
        they are busy. A request is sent three times at most, about 0.3 and 0.9 s after the first: a dead replica is
        removed before the last. Each further one could end one more engine, where the prompt is the cause. Of 0.1.17,
        requests to /v1/messages and /v1/responses are sent once.

        With a prefill pool it is started for several routers, because 0.1.17 takes further engines of a role only then;
        of a request that two engines serve none is sent again.
        """
        pools = ("--enable-igw", "--kv-connector=nixl") if self.prefill else ()
        return (
            *pools,
            "--host=0.0.0.0",
            f"--port={self.port}",
            "--prometheus-host=0.0.0.0",
            f"--prometheus-port={self.metrics_port}",
            f"--policy={self.policy}",
            "--disable-circuit-breaker",
            "--retry-max-retries=3",  # it counts the first one too
            "--retry-initial-backoff-ms=300",
            "--retry-backoff-multiplier=2",
            "--worker-startup-timeout-secs=5",
            "--worker-startup-check-interval=1",
            "--health-check-interval-secs=10",
            # Of a whole answer: clients bound their requests, and so does the engine's drain.
            "--request-timeout-secs=86400",
            "--log-level=error",
        )
