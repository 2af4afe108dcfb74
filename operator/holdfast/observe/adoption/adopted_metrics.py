"""Metrics of Deployments of somebody else: the same queries, by the names of pods in place of Holdfast's labels.

Engines that Holdfast made carry labels that Prometheus copies to their series. Those of a target have only namespace
and pod. So each query of `observe.series.queries` is sent once more for all targets together: its selectors name their
namespaces and pods, and `label_replace` gives each row the Deployment's name, which begins the pod's, as service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import History, Traffic
from holdfast.observe.series.promql import EngineSelector, any_of
from holdfast.observe.series.queries import Query
from holdfast.observe.series.samples import QueryResult, Sample, Series
from holdfast.observe.signals.prometheus import MetricsClient, PrometheusSource
from holdfast.observe.signals.traffic import TrafficRequest

_LETTER = "[bcdfghjklmnpqrstvwxz2456789]"
_REST = f"-{_LETTER}+-{_LETTER * 5}"
"""What Kubernetes puts behind the name of a Deployment to name a pod: the hash of its ReplicaSet, and five letters.

Without quantifiers in braces, because braces mark selectors (see `client.matching`).
"""


@dataclass(frozen=True)
class TargetSelector(EngineSelector):
    """The engines of Deployments of somebody else: the regular expression `pods` begins with their names."""

    pods: str = ""

    def of(self, services: Iterable[str]) -> EngineSelector:
        """Return all of them: their series name no service."""
        return self

    def read(self, metric: str, *more: str, **how: str) -> str:
        """Return the vector with the Deployment's name, which begins the pod's, as service."""
        vector = super().read(metric, *more, **how)
        return f'label_replace({vector}, "holdfast_service", "$1", "pod", "{self.pods}")'


def targets(deployments: Iterable[ServiceKey]) -> TargetSelector:
    """Return the engines of these Deployments (namespace and name)."""
    known = sorted(deployments)
    namespaces, pods = any_of(key.namespace for key in known), f"({any_of(key.name for key in known)}){_REST}"
    return TargetSelector(f'holdfast_service="", namespace=~"{namespaces}", pod=~"{pods}"', pods)


class TargetsClient:
    """A client that asks for targets; `found` maps each Deployment to its service and accelerator."""

    def __init__(self, client: MetricsClient) -> None:
        self._client = client
        self.found: Mapping[ServiceKey, tuple[str, str]] = {}

    def instant(self, query: Query, at: float) -> QueryResult:
        """Evaluate at `at` (seconds since the epoch)."""
        result = self._client.instant(self._asked(query), at)
        rows = (self._labelled(row) for row in result.samples)
        return QueryResult(tuple(row for row in rows if row is not None), result.warnings)

    def range(
        self, query: Query, start: float, end: float, step_seconds: float, timeout_seconds: float
    ) -> tuple[Series, ...]:
        """Evaluate at every step of [start, end]."""
        found = self._client.range(self._asked(query), start, end, step_seconds, timeout_seconds)
        labelled = ((row, self._labels(row.labels)) for row in found)
        return tuple(replace(row, labels=labels) for row, labels in labelled if labels is not None)

    def close(self) -> None:
        """Send no more queries."""
        self._client.close()

    def _asked(self, query: Query) -> Query:
        return replace(query, engines=targets(self.found))

    def _labelled(self, row: Sample) -> Sample | None:
        labels = self._labels(row.labels)
        return None if labels is None else row._replace(labels=labels)

    def _labels(self, labels: Mapping[str, str]) -> Mapping[str, str] | None:
        """The labels as of an engine of ours; None for a row of another namespace's Deployment of that name."""
        deployment = labels.get("holdfast_service", "")
        if not deployment:  # of Prometheus itself, or of engines that lack a label, as those of targets do
            return None if labels.get("metric") == "unlabelled" else labels
        service = self.found.get(ServiceKey(labels.get("namespace", ""), deployment))
        return service and {**labels, "holdfast_service": service[0], "holdfast_accelerator": service[1]}


class SplitSource:
    """Asks for engines of Holdfast's own and for those of targets, each with a constant number of queries."""

    def __init__(self, own: PrometheusSource, targets: PrometheusSource, client: TargetsClient) -> None:
        self._own = own
        self._targets = targets
        self._client = client
        self._adopted: frozenset[ServiceKey] = frozenset()

    async def observe(self, requests: Sequence[TrafficRequest], now: float) -> Mapping[ServiceKey, Traffic]:
        """Return one Traffic per request."""
        own, adopted = _split(requests)
        self._adopted = frozenset(request.key for request in adopted)
        self._client.found = {
            ServiceKey(each.key.namespace, each.target): (each.key.name, each.accelerator) for each in adopted
        }
        first, second = await asyncio.gather(self._own.observe(own, now), self._targets.observe(adopted, now))
        return {**first, **second}

    async def history(self, requests: Sequence[TrafficRequest], now: float) -> Mapping[ServiceKey, History]:
        """Return the history of each service's SLO window. Raises QueryError."""
        found: dict[ServiceKey, History] = {}
        for source, asked in zip((self._own, self._targets), _split(requests), strict=True):
            if asked:
                found |= await source.history(asked, now)
        return found

    async def running_by_pod(self, keys: Iterable[ServiceKey], now: float) -> Mapping[ServiceKey, Mapping[str, float]]:
        """Return requests in flight by pod name."""
        wanted = set(keys)
        found: dict[ServiceKey, Mapping[str, float]] = {}
        for source, asked in ((self._own, wanted - self._adopted), (self._targets, wanted & self._adopted)):
            if asked:
                found |= await source.running_by_pod(sorted(asked), now)
        return found

    def catch_up(self) -> None:
        """Start the queries that the last tick did not wait for."""
        self._own.catch_up()
        self._targets.catch_up()

    async def close(self) -> None:
        """Send no more queries."""
        await self._own.close()
        await self._targets.close()


def _split(requests: Sequence[TrafficRequest]) -> tuple[list[TrafficRequest], list[TrafficRequest]]:
    """Services with engines of Holdfast's own, and those with a target."""
    return [each for each in requests if not each.target], [each for each in requests if each.target]
