"""The plugin's numbers for Prometheus, read from the scheduler's file at every scrape."""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast_engine.clientlag import LAG_BUCKETS
from holdfast_engine.engine_info import INFO_LABELS, Identity
from holdfast_engine.leastsquares import TERMS
from holdfast_engine.stats_fields import FIELDS, LAG_TOKENS, LAW, LIMITS, Mode
from holdfast_engine.statsfile import StatsWriter, read_stats

_CAUSES = ("ttft", "tpot", "e2e", "error")
_LANES = ("front", "fresh", "late")
_OFF = {"mode": float(Mode.OFF)}

logger = logging.getLogger("vllm.holdfast")


class EngineCollector(Collector):
    """The counters of one or more engines; `rejected` are the requests that this API server turned away itself.

    Several API servers of a pod write that number into the folder `shared`: whichever is scraped tells it of all.
    """

    def __init__(self, identity: Identity, paths: dict[int, Path], shared: Path | None = None) -> None:
        self.rejected = 0
        self._shared = shared
        self._writer: StatsWriter | None = None
        self._identity = identity
        self._paths = paths
        self._failing = False

    def reject(self) -> None:
        """Count a request that got a 503 before it reached the engine."""
        self.rejected += 1
        if self._shared is None:
            return
        try:
            self._writer = self._writer or StatsWriter(self._shared / f"holdfast-{os.getpid()}.rejected", 1)
            self._writer.write([self.rejected])
        except Exception as error:
            logger.error("holdfast: a refusal is in no count: %s", error)

    def _rejected_by_all(self) -> float:
        if self._shared is None:
            return float(self.rejected)
        return sum(sum(read_stats(path, 1) or ()) for path in self._shared.glob("holdfast-*.rejected"))

    def describe(self) -> list[Metric]:
        """No names before the first scrape: they are read, not made up."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families; an engine without a file is off, and so are all where the numbers cannot be told.

        vLLM's own metrics come from the same page: nothing may fail here.
        """
        try:
            families = list(self._families())
            self._failing = False
        except Exception as error:
            if not self._failing:
                logger.error("holdfast: no counters on /metrics: %s", error, exc_info=error)
            self._failing = True
            families = [self._info({str(engine): _OFF for engine in self._paths})]
        return iter(families)

    def _families(self) -> Iterator[Metric]:
        engines = {}
        for engine in self._paths:
            found = self.numbers(engine)
            engines[str(engine)] = dict(zip(FIELDS, found, strict=True)) if found else _OFF
        yield self._info(engines)
        yield self._engine_info()
        known = {engine: numbers for engine, numbers in engines.items() if "arrived" in numbers}
        if known:
            yield from self._counters(known)
            yield from self._gauges(known)

    def numbers(self, engine: int) -> Sequence[float] | None:
        """The record of one engine, None where it has none."""
        return read_stats(self._paths[engine], len(FIELDS))

    def _info(self, engines: dict[str, dict[str, float]]) -> Metric:
        family = GaugeMetricFamily(
            "holdfast:plugin_info",
            "The plugin, what it runs in, and its mode: off (stock vLLM), waiting (for objectives) or active.",
            labels=("model_name", "engine", "version", "vllm_version", "mode"),
        )
        for engine, numbers in engines.items():
            mode = Mode(int(numbers["mode"])).name.lower()
            identity = self._identity
            family.add_metric([identity.model_name, engine, identity.version, identity.vllm_version, mode], 1)
        return family

    def _engine_info(self) -> Metric:
        """The same of every engine behind this API server: they share a configuration."""
        family = GaugeMetricFamily(
            "holdfast:engine_info",
            "How vLLM was started: labels are empty where it does not say; graph_edge is in tokens, 0 without graphs.",
            labels=("model_name", "engine", *INFO_LABELS),
        )
        said = [self._identity.facts.get(label, "") for label in INFO_LABELS]
        for engine in self._paths:
            family.add_metric([self._identity.model_name, str(engine), *said], 1)
        return family

    def _counters(self, engines: dict[str, dict[str, float]]) -> Iterator[Metric]:
        first = next(iter(engines))
        turned_away = self._rejected_by_all()
        rejected = {engine: turned_away if engine == first else 0.0 for engine in engines}
        arrived = self._counter("requests_arrived", "Requests that reached the engine, or were turned away by it.")
        bad = self._counter("requests_bad", "Requests outside the objectives, by the bound they broke.", "cause")
        steps = self._counter(
            "step_sums",
            "Sums over engine steps, in thousands of prompt tokens computed (prefill), hundreds of decoding sequences "
            "(decodes), 100k tokens of KV cache read (kv), millions of attention pairs (pairs) and seconds; one is the "
            "number of steps.",
            "term",
        )
        for engine, numbers in engines.items():
            label = [self._identity.model_name, engine]
            arrived.add_metric(label, numbers["arrived"] + rejected[engine])
            for cause in _CAUSES:
                bad.add_metric([*label, cause], numbers[f"bad_{cause}"])
            bad.add_metric([*label, "rejected"], rejected[engine])
            for term in TERMS:
                steps.add_metric([*label, term], numbers[f"steps_{term}"])
        yield from (arrived, bad, steps)
        yield self._plain("requests_good", "Requests inside all objectives.", "good", engines)
        yield self._plain("requests_withdrawn", "Requests aborted in time before a first token.", "withdrawn", engines)
        yield self._plain("good_tokens", "Output tokens of good requests.", "good_tokens", engines)
        yield self._plain("plugin_seconds", "Time spent in the plugin itself.", "plugin_seconds", engines)
        yield self._plain("plugin_steps", "Engine steps under the plugin.", "plugin_steps", engines)
        yield self._lags(engines)

    def _lags(self, engines: dict[str, dict[str, float]]) -> Metric:
        family = HistogramMetricFamily(
            "holdfast:front_end_lag_seconds",
            "Time from a token leaving the engine core to its bytes being written, for the first and the last token of "
            "an answer.",
            labels=("model_name", "engine", "token"),
        )
        for engine, numbers in engines.items():
            for token in LAG_TOKENS:
                counts = (numbers[f"lag_{token}_{edge:g}"] for edge in LAG_BUCKETS)
                buckets = [
                    ("+Inf" if math.isinf(edge) else str(edge), count)
                    for edge, count in zip(LAG_BUCKETS, itertools.accumulate(counts), strict=True)
                ]
                total = numbers[f"lag_{token}_sum"]
                family.add_metric([self._identity.model_name, engine, token], buckets=buckets, sum_value=total)
        return family

    def _gauges(self, engines: dict[str, dict[str, float]]) -> Iterator[Metric]:
        limits = self._gauge("limits", "Objectives and limits in force.", engines, "name", LIMITS, "limit_")
        law = self._gauge(
            "step_law",
            "Seconds per step (c0), prompt token, decoding sequence, KV token and attention pair, and of launches by "
            "kind of step; edge_tokens is the size of the largest CUDA graph, error is relative.",
            engines,
            "coefficient",
            (*LAW, "error"),
            "law_",
        )
        waiting = self._gauge("requests_waiting", "Waiting requests by lane.", engines, "lane", _LANES, "waiting_")
        yield from (limits, law, waiting)
        for name, column, about in (
            ("requests_unjudged", "unjudged", "Requests that arrived and are not judged yet."),
            ("waiting_fresh_tokens", "waiting_fresh_tokens", "Prompt tokens of waiting requests that can be in time."),
            ("prefill_tps", "prefill_tps", "Prompt tokens per second that the engine computes when it is full."),
            ("step_seconds", "step_seconds", "Predicted seconds of the next step with all the prefill it may have."),
            ("room_tokens", "room_tokens", "Prompt tokens that would find a free sequence at once."),
            ("burst_tps", "burst_tps", "Prompt tokens per second that the engine computes for them."),
            ("mean_prompt_tokens", "mean_prompt_tokens", "Mean length of the prompts that came lately."),
            ("under_way_seconds", "under_way_seconds", "Predicted seconds of the steps that are launched ahead."),
            ("front_end_lag_estimate_seconds", "front_end_lag", "What decisions set aside of TTFT for the front end."),
            ("client_times", "client_times", "1 where requests are judged by the times at which bytes were written."),
            ("computed_prompt_share", "computed_share", "Share of prompt tokens that the prefix cache does not hold."),
        ):
            family = GaugeMetricFamily(f"holdfast:{name}", about, labels=("model_name", "engine"))
            for engine, numbers in engines.items():
                if not math.isnan(numbers[column]):
                    family.add_metric([self._identity.model_name, engine], numbers[column])
            yield family

    def _counter(self, name: str, about: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"holdfast:{name}", about, labels=("model_name", "engine", *labels))

    def _plain(self, name: str, about: str, field: str, engines: dict[str, dict[str, float]]) -> Metric:
        family = self._counter(name, about)
        for engine, numbers in engines.items():
            family.add_metric([self._identity.model_name, engine], numbers[field])
        return family

    def _gauge(
        self,
        name: str,
        about: str,
        engines: dict[str, dict[str, float]],
        label: str,
        values: Sequence[str],
        prefix: str,
    ) -> Metric:
        family = GaugeMetricFamily(f"holdfast:{name}", about, labels=("model_name", "engine", label))
        for engine, numbers in engines.items():
            for value in values:
                if math.isfinite(numbers[prefix + value]):
                    family.add_metric([self._identity.model_name, engine, value], numbers[prefix + value])
        return family
