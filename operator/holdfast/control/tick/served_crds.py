"""Compares the CRDs of the cluster with the operator's own: an operator may be newer than the installed CRDs.

The comparison runs at the start, then hourly; every minute while a CRD is too old or unknown, so that its update shows
soon. No tick waits for it. An answer that cannot be read changes nothing: what was known stays known.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from holdfast.act.api import ApiError, ApiPort, ApiUnreachable
from holdfast.api.crd import DEFINITIONS, LLMBENCHMARK, LLMSERVICE, Definition
from holdfast.api.crd_fields import missing_fields
from holdfast.api.llmservice import GROUP, VERSION
from holdfast.api.quantities import counted, some_of
from holdfast.api.reasons import Reason
from holdfast.domain.service import ServiceKey
from holdfast.observe.objects.benchmarks import Benchmark
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.policy.explain.messages import MOST_PATHS, UPDATE_CRDS, lost_fields

_LOG = logging.getLogger(__name__)
PATH = f"/openapi/v3/apis/{GROUP}/{VERSION}"
"""Every account may read it: the ClusterRole `system:discovery` of Kubernetes grants it."""

HOUR_SECONDS, SOON_SECONDS = 3600.0, 60.0


class CrdTelemetry(Protocol):
    """Metrics of the comparison."""

    def missing_fields(self, crd: str, count: int) -> None: ...


class ServedCrds:
    """What the served CRDs are known to lack; nothing is said of a CRD that could not be read yet."""

    def __init__(self, api: ApiPort, telemetry: CrdTelemetry, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._telemetry = telemetry
        self._monotonic = monotonic
        self._missing: dict[str, tuple[str, ...]] = {}
        self._due_at = -math.inf
        self._reading: asyncio.Task[None] | None = None
        self._failure = ""
        self._told: frozenset[tuple[str, ServiceKey, tuple[str, ...]]] = frozenset()

    def lost_fields(
        self, services: Iterable[ServiceParts], benchmarks: Iterable[Benchmark]
    ) -> Mapping[ServiceKey, tuple[str, ...]]:
        """Read again in the background if that is due, and return the fields that each service lost to an old CRD.

        A service that lost none is left out. Every loss is logged once, those of benchmarks too.
        """
        if self._due_at <= self._monotonic() and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._read())
        lost = self._lost(LLMSERVICE, ((part.spec.key, part.not_stored) for part in services))
        self._tell(lost, self._lost(LLMBENCHMARK, ((each.key, each.not_stored) for each in benchmarks)))
        return lost

    def _lost(
        self, of: Definition, objects: Iterable[tuple[ServiceKey, tuple[str, ...]]]
    ) -> dict[ServiceKey, tuple[str, ...]]:
        if not (missing := frozenset(self._missing.get(of.name, ()))):
            return {}
        found = ((key, tuple(path for path in paths if path in missing)) for key, paths in objects)
        return {key: paths for key, paths in found if paths}

    def _tell(self, *lost: Mapping[ServiceKey, tuple[str, ...]]) -> None:
        kinds = LLMSERVICE.kind, LLMBENCHMARK.kind
        now = frozenset((kind, *item) for kind, found in zip(kinds, lost, strict=True) for item in found.items())
        for kind, key, paths in sorted(now - self._told):
            _LOG.warning("%s %s: %s: %s", kind, key, Reason.CRD_TOO_OLD, lost_fields(paths))
        self._told = now

    async def _read(self) -> None:
        """Read and compare once."""
        failure = await self._compare()
        if failure and failure != self._failure:
            unknown = "so whether the CRDs lack fields is unknown; the read is repeated every minute"
            _LOG.warning("%s cannot be read (%s), %s", PATH, failure, unknown)
        self._failure = failure
        is_settled = not failure and not any(self._missing.values())
        self._due_at = self._monotonic() + (HOUR_SECONDS if is_settled else SOON_SECONDS)

    async def _compare(self) -> str:
        """Take note of what the CRDs lack; return what went wrong, empty if nothing did."""
        try:
            document = await self._api.request("GET", PATH)
            found = {of.name: missing_fields(document, of) for of in DEFINITIONS}
        except (ApiError, ApiUnreachable) as error:
            return str(error)
        except Exception as error:  # an answer that nobody expected: sizing goes on
            return f"{type(error).__name__}: {error}"
        for name, missing in found.items():
            if missing is not None:
                self._take(name, missing)
        return f"it has no schema of {LLMSERVICE.kind}" if found[LLMSERVICE.name] is None else ""

    def _take(self, name: str, missing: tuple[str, ...]) -> None:
        self._telemetry.missing_fields(name, len(missing))
        before = self._missing.get(name, ())
        if missing and missing != before:
            lacks = f"lacks {counted(len(missing), 'field')} of the operator's version ({some_of(missing, MOST_PATHS)})"
            dropped = "the API server does not store them"
            _LOG.warning("%s: CRD %s %s; %s. %s", Reason.CRD_TOO_OLD, name, lacks, dropped, UPDATE_CRDS)
        elif before and not missing:
            _LOG.info("CRD %s has all fields of the operator's version again", name)
        self._missing[name] = missing
