"""vLLM's stat logger plugin (entry point group `vllm.stat_logger_plugins`): our counters on the engine's own /metrics.

It runs in the API server process. vLLM stops at start when a stat logger fails, so nothing here may.
"""

from __future__ import annotations

import logging
from typing import Any

import vllm
from prometheus_client import REGISTRY
from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from holdfast_engine.stats import stats_fields
from holdfast_engine.stats.engine_info import identity_of
from holdfast_engine.stats.metrics import EngineCollector

logger = logging.getLogger("vllm.holdfast")


class HoldfastStatLogger(AggregateStatLoggerBase):
    """Registers the collector and counts the requests that the API server turns away."""

    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:
        self._collector: EngineCollector | None = None
        try:
            identity = identity_of(vllm_config, vllm.__version__)
            paths = {engine: stats_fields.stats_path(engine) for engine in engine_indexes}
            shared = stats_fields.servers_folder()
            self._collector = EngineCollector(identity, paths, shared)
            if shared is None:  # a page of several API servers shows no registry: the pod's first process adds ours
                REGISTRY.register(self._collector)
        except Exception as error:
            logger.error("holdfast: no counters on /metrics: %s", error, exc_info=error)

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Nothing per step: the scheduler counts, and /metrics reads its file."""

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def record_admission_rejection(self, reason: str) -> None:
        """Count a request that got a 503 before it reached the engine: it arrived, and it is bad."""
        if self._collector is not None:
            self._collector.reject()
