"""The plugin's numbers for Prometheus, read from the scheduler's file at every scrape."""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast_engine.clients.clientlag import LAG_BUCKETS
from holdfast_engine.law.leastsquares import TERMS
from holdfast_engine.objectives.claims import CLAIMED
from holdfast_engine.objectives.rules import SERVICE_CLASS
from holdfast_engine.stats.classfiles import claimed_in, class_path, read_class, read_classes
from holdfast_engine.stats.engine_info import INFO_LABELS, Identity
from holdfast_engine.stats.stats_fields import BATCH_SUMS, FIELDS, LAG_TOKENS, LAW, LIMITS, Mode
from holdfast_engine.stats.statsfile import StatsWriter, read_stats

_CAUSES = ("ttft", "tpot", "e2e", "error", "killed")
_LANES = ("front", "fresh", "late")
_PAIR = {
    "requests_handed_over": ("handed_over", "Requests that ended well here, and that a decode engine goes on with."),
    "requests_received": ("received", "Requests that a prefill engine handed over to this one."),
    "kv_expired": ("kv_expired", "Received requests that came too late for the KV cache of their prefill engine."),
}
_BY_CLASS = ("model_name", "engine", "class")
_OFF = {"mode": float(Mode.OFF)}

logger = logging.getLogger("vllm.holdfast")


class EngineCollector(Collector):
    """The counters of one or more engines; `rejected` are the requests that this API server turned away itself, by
    class.

    Several API servers of a pod write these numbers into the folder `shared`, from which the pod's page adds them up.
    """

    def __init__(self, identity: Identity, paths: dict[int, Path], shared: Path | None = None) -> None:
        self.rejected: Counter[str] = Counter()
        self._shared = shared
        self._writers: dict[str, StatsWriter] = {}
        self._identity = identity
        self._paths = paths
        self._failing = False

    def reject(self) -> None:
        """Count a request that got a 503 before it reached the engine."""
        try:
            name = self._claimed()
            if self._shared is None:
                self.rejected[name] += 1
                return
            writer = self._writers.get(name)
            if writer is None or not writer.path.exists():
                self.rejected[name] = 0  # the first one, or the class was declared no more in between
                self._writers[name] = StatsWriter(self._shared / f"holdfast-{os.getpid()}.{name}.rejected", 1)
            self.rejected[name] += 1
            self._writers[name].write([self.rejected[name]])
        except Exception as error:
            logger.error("holdfast: a refusal is in no count: %s", error)

    def _claimed(self) -> str:
        """The class of the request that is turned away, as far as only its headers are read: one that is declared."""
        claimed = CLAIMED.get()
        if not claimed:
            return SERVICE_CLASS
        found = (claimed_in(partial(read_class, path), claimed) for path in self._paths.values())
        return next(filter(None, found), SERVICE_CLASS)

    def _rejected_by_all(self) -> Counter[str]:
        """Those of declared classes: like its other counts, those of a class that is declared no more are forgotten."""
        if self._shared is None:
            for name in [name for name in self.rejected if not self._is_declared(name)]:
                del self.rejected[name]
            return Counter(self.rejected)
        found: Counter[str] = Counter()
        for path in self._shared.glob("holdfast-*.rejected"):
            name = path.name.split(".")[1]
            if self._is_declared(name):
                found[name] += int(sum(read_stats(path, 1) or ()))
            else:
                path.unlink(missing_ok=True)
        return found

    def _is_declared(self, name: str) -> bool:
        return name == SERVICE_CLASS or any(class_path(path, name).exists() for path in self._paths.values())

    def describe(self) -> list[Metric]:
        """No names before the first scrape: they are read, not made up."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families; an engine without a file is off, and so are all where the numbers cannot be read.

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
            yield from self._requests(known)
            yield from self._counters(known)
            yield from self._gauges(known)

    def classes(self, engine: int) -> Mapping[str, Mapping[str, float]]:
        """The numbers of the declared classes of one engine, and perhaps the service's own, by class."""
        return read_classes(self._paths[engine])

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

    def _requests(self, engines: dict[str, dict[str, float]]) -> Iterator[Metric]:
        """Counts by class. Requests that were turned away count at the first engine, if its class is known there."""
        arrived = self._counter("requests_arrived", "Requests that reached the engine, or were turned away.", "class")
        good = self._counter("requests_good", "Requests inside all objectives.", "class")
        bad = self._counter("requests_bad", "Requests outside the objectives, by the broken bound.", "class", "cause")
        withdrawn = self._counter("requests_withdrawn", "Requests aborted in time before a first token.", "class")
        tokens = self._counter("good_tokens", "Output tokens of good requests.", "class")
        unjudged = GaugeMetricFamily(
            "holdfast:requests_unjudged", "Requests that arrived and are not judged yet.", labels=_BY_CLASS
        )
        pair = {column: self._counter(name, about, "class") for name, (column, about) in _PAIR.items()}
        rejected = self._rejected_by_all()
        yield from self._batch(engines, rejected)
        for engine, own in engines.items():
            for name, numbers in ({**self.classes(int(engine)), SERVICE_CLASS: own}).items():
                if numbers.get("is_batch"):
                    continue
                label, refused = [self._identity.model_name, engine, name], rejected.pop(name, 0)
                arrived.add_metric(label, numbers["arrived"] + refused)
                good.add_metric(label, numbers["good"])
                for cause in _CAUSES:
                    bad.add_metric([*label, cause], numbers[f"bad_{cause}"])
                bad.add_metric([*label, "rejected"], refused)
                withdrawn.add_metric(label, numbers["withdrawn"])
                tokens.add_metric(label, numbers["good_tokens"])
                for column, family in pair.items():
                    if own["limit_role"] > 0.0 or numbers[column]:
                        family.add_metric(label, numbers[column])
                if not math.isnan(own["unjudged"]):
                    unjudged.add_metric(label, numbers["unjudged"])
        yield from (arrived, good, bad, withdrawn, tokens, unjudged, *(each for each in pair.values() if each.samples))

    def _batch(self, engines: dict[str, dict[str, float]], rejected: Counter[str]) -> Iterator[Metric]:
        """Counts of Batch classes, under names of their own: no sum over requests that somebody waits for has them."""
        arrived = self._counter("batch_requests_arrived", "Batch requests that came, or were turned away.", "class")
        ended = self._counter("batch_requests_ended", "Batch requests that ended, by outcome.", "class", "outcome")
        tokens = self._counter("batch_output_tokens", "Output tokens of batch requests that were done.", "class")
        for engine in engines:
            for name, numbers in self.classes(int(engine)).items():
                if not numbers["is_batch"]:
                    continue
                label, refused = [self._identity.model_name, engine, name], rejected.pop(name, 0)
                arrived.add_metric(label, numbers["arrived"] + refused)
                outcomes = {"done": numbers["good"], "error": numbers["bad_error"], "rejected": refused}
                if numbers["handed_over"]:
                    outcomes["handed_over"] = numbers["handed_over"]
                for outcome, count in (outcomes | {"withdrawn": numbers["withdrawn"]}).items():
                    ended.add_metric([*label, outcome], count)
                tokens.add_metric(label, numbers["good_tokens"])
        if arrived.samples:
            yield from (arrived, ended, tokens, *self._batch_of_engines(engines))

    def _batch_of_engines(self, engines: dict[str, dict[str, float]]) -> Iterator[Metric]:
        """What an operator leaves out of vLLM's own numbers."""
        now = GaugeMetricFamily(
            "holdfast:batch_requests", "Batch requests in the engine.", labels=("model_name", "engine", "state")
        )
        sums = self._counter("batch_sums", "Batch requests with a token, done ones, and their tokens.", "term")
        for engine, numbers in engines.items():
            label = [self._identity.model_name, engine]
            for state, number in (("running", numbers["batch_running"]), ("waiting", numbers["waiting_batch"])):
                if not math.isnan(number):
                    now.add_metric([*label, state], number)
            for term in BATCH_SUMS:
                sums.add_metric([*label, term], numbers[f"batch_{term}"])
        yield from (now, sums)

    def _counters(self, engines: dict[str, dict[str, float]]) -> Iterator[Metric]:
        steps = self._counter(
            "step_sums",
            "Sums over engine steps, in thousands of prompt tokens computed (prefill), hundreds of decoding sequences "
            "(decodes), 100k tokens of KV cache read (kv), millions of attention pairs (pairs) and seconds; one is the "
            "number of steps.",
            "term",
        )
        for engine, numbers in engines.items():
            for term in TERMS:
                steps.add_metric([self._identity.model_name, engine, term], numbers[f"steps_{term}"])
        yield steps
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
            "kind of step; edge_tokens is the size of the largest CUDA graph (512 if unknown), error is relative.",
            engines,
            "coefficient",
            (*LAW, "error"),
            "law_",
        )
        waiting = self._gauge("requests_waiting", "Waiting requests by lane.", engines, "lane", _LANES, "waiting_")
        yield from (limits, law, waiting)
        for name, column, about in (
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
