"""Live limits: sends limits to running engines, and checks whether they are in force.

There are two paths to an engine. A ConfigMap per service, rendered with the other objects, serves pods that start while
no operator runs; its changes take a minute. The annotation of a pod reaches its file within a second, and is written
for every pod whose annotation differs. Nothing is written while both are correct.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.act.api import ApiError, ApiPort
from holdfast.act.apply import WATCH_LAG_SECONDS
from holdfast.act.pods import apply_metadata
from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.control.bounded_work import do_each
from holdfast.control.limits.limits_in_force import (
    NOTHING_APPLIED,
    Applied,
    Watched,
    applied,
    can_see,
    stands_until,
    unseen,
    watch,
)
from holdfast.control.limits.limits_version import numbered
from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import SignalState, Traffic
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.observe.objects.engines import EnginePod
from holdfast.rendered.names import LIMITS_ANNOTATION
from holdfast_engine.objectives.rules import Limits

_LOG = logging.getLogger(__name__)
LIMITS = "holdfast-limits"
"""Field manager of the annotation, which the engine reads as a file within a second."""

UNSEEN = Traffic(SignalState.UNREACHABLE)

Contents = Callable[[LLMService, Accelerator], Limits | None]


@dataclass(slots=True)
class _LimitsState:
    """State of one service. It may be lost at any time; then the grace period starts again."""

    uid: str
    generation: int = -1
    contents: Mapping[str, Limits] = field(default_factory=dict)  # by accelerator, as wanted by this generation
    wanted: dict[str, Limits] = field(default_factory=dict)  # the same with their versions
    sent: dict[str, tuple[Limits, float]] = field(default_factory=dict)  # by uid of the pod
    watched: Mapping[str, Watched] = field(default_factory=dict)  # by pod
    told: Applied = NOTHING_APPLIED
    at_rest: object = None  # inputs of the last tick that changed nothing
    rests_until: float = -math.inf  # when time alone changes the result: an engine is then reported to lack its limits


@dataclass(frozen=True, slots=True)
class _Write:
    key: ServiceKey
    engine: EnginePod
    limits: Limits
    tried_at: float


class LiveLimits:
    """Numbers the limits of every service, writes them to pods, and reads back what is in force.

    `contents` returns the desired limits for one accelerator, None for none; their version is ignored.
    """

    def __init__(self, api: ApiPort, contents: Contents, scrape_seconds: float) -> None:
        self._api = api
        self._contents = contents
        self._scrape_seconds = scrape_seconds
        self._states: dict[ServiceKey, _LimitsState] = {}

    def forget_all_but(self, uids: Mapping[ServiceKey, str]) -> None:
        """Drop deleted services, even if a new service has the same name."""
        for key in [key for key, state in self._states.items() if uids.get(key) != state.uid]:
            del self._states[key]

    def wanted(self, part: ServiceParts) -> Mapping[str, Limits]:
        """Return the desired limits by accelerator, as of the last tick."""
        return self._of(part).wanted

    def applied(self, part: ServiceParts) -> Applied:
        """Return the limits that the engines reported at the last tick."""
        return self._of(part).told

    def look(self, part: ServiceParts, traffic: Traffic, now: float) -> None:
        """Compute the desired limits with their version, and the limits in force."""
        state = self._of(part)
        seen = (part.spec.generation, part.engines, part.limits, part.replicas, can_see(traffic), traffic.plugins)
        if seen == state.at_rest and now < state.rests_until:
            return
        before, state.at_rest = (state.wanted, state.watched, state.told), None
        if state.generation != part.spec.generation:
            state.generation, state.contents = part.spec.generation, self._contents_of(part.service)
        state.wanted = {name: self._numbered(state, part, name, traffic, now) for name in state.contents}
        self._judge(state, part, traffic, now)
        if before == (state.wanted, state.watched, state.told):
            state.at_rest = seen
            state.rests_until = stands_until(state.watched.values(), self._scrape_seconds, now)

    async def write(self, parts: Sequence[ServiceParts], now: float) -> None:
        """Write the annotation of every pod that lacks its limits, at most `MOST_IN_A_TICK` of them.

        Raises NotLeading and ApiUnreachable, and both end the writing. A write that the API server refuses is
        only logged: it is retried later, and meanwhile the pod is reported as not having applied its limits.
        """
        due = sorted((write for part in parts for write in self._due(part, now)), key=lambda write: write.tried_at)
        await do_each(due, lambda write: self._tell(write, now))

    async def _tell(self, write: _Write, now: float) -> None:
        key, engine, limits = write.key, write.engine, write.limits
        metadata = {"annotations": {LIMITS_ANNOTATION: limits.to_json()}}
        try:
            await apply_metadata(self._api, key.namespace, engine.pod, engine.uid, LIMITS, metadata)
        except ApiError as refused:
            if not refused.namespace_ends:
                _LOG.warning("%s: writing the limits of pod %s failed: %s", key, engine.pod, refused)
        else:
            _LOG.info("%s: limits of version %d written to pods %s", key, limits.version, engine.pod)
        self._states[key].sent[engine.uid] = (limits, now)

    def _due(self, part: ServiceParts, now: float) -> Iterator[_Write]:
        """Pods to write now; the watch has some seconds to show the last write."""
        state = self._of(part)
        here = {engine.uid for engine in part.engines}
        state.sent = {uid: sent for uid, sent in state.sent.items() if uid in here}
        for engine in part.engines:
            limits = state.wanted.get(engine.accelerator)
            if limits is None or engine.told == limits:
                continue
            last, at = state.sent.get(engine.uid, (None, -math.inf))
            if last != limits or abs(now - at) >= WATCH_LAG_SECONDS:
                yield _Write(part.spec.key, engine, limits, at)

    def _numbered(
        self, state: _LimitsState, part: ServiceParts, accelerator: str, traffic: Traffic, now: float
    ) -> Limits:
        engines = [engine for engine in part.engines if engine.accelerator == accelerator]
        known = [state.wanted.get(accelerator), dict(part.limits).get(accelerator), *(each.told for each in engines)]
        pods = {engine.pod for engine in engines}
        reported = [state.limits_version for state in traffic.plugins if state.pod in pods and state.limits_version]
        return numbered(state.contents[accelerator], [limits for limits in known if limits], reported, now)

    def _judge(self, state: _LimitsState, part: ServiceParts, traffic: Traffic, now: float) -> None:
        if not part.engines:
            # Between two pods of a service with one replica there is no new information.
            state.told = NOTHING_APPLIED if part.replicas else state.told
            state.watched = {}
            return
        if not can_see(traffic):
            state.told = unseen(state.told)
            return
        ready = {replica.name for replica in part.replicas if replica.phase is ReplicaPhase.READY}
        asked = {engine.pod: state.wanted.get(engine.accelerator) for engine in part.engines if engine.pod in ready}
        versions = {pod: limits.version for pod, limits in asked.items() if limits is not None}
        state.watched = watch(state.watched, versions, traffic.plugins, now)
        state.told = applied(state.watched, state.told, self._scrape_seconds, now)

    def _contents_of(self, service: LLMService) -> dict[str, Limits]:
        found = ((accelerator.name, self._contents(service, accelerator)) for accelerator in service.spec.accelerators)
        return {name: limits for name, limits in found if limits is not None}

    def _of(self, part: ServiceParts) -> _LimitsState:
        state = self._states.get(part.spec.key)
        if state is None or state.uid != part.spec.uid:
            state = self._states[part.spec.key] = _LimitsState(part.spec.uid)
        return state
