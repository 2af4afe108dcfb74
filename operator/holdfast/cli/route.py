"""`holdfast route`: vllm-router in front of the ready replicas of a service."""

from __future__ import annotations

import argparse
import asyncio
import logging

from holdfast.router.options import Options
from holdfast.router.serve import serve


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; the exit status of vllm-router."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    options = Options(
        replicas=arguments.replicas,
        replica_port=arguments.replica_port,
        port=arguments.port,
        metrics_port=arguments.metrics_port,
        linger_seconds=arguments.linger,
        policy=arguments.policy,
        prefill=arguments.prefill,
        model=arguments.model,
    )
    return asyncio.run(serve(options))
