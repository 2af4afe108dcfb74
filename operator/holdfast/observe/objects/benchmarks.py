"""LLMBenchmarks, their Jobs and their results -> what decisions need of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pydantic

from holdfast.api.benchmark_status import BenchmarkEngines
from holdfast.api.crd import LLMBENCHMARK
from holdfast.api.llmbenchmark import InvalidLLMBenchmark, LLMBenchmark
from holdfast.api.quantities import parse_duration_seconds, parse_percent
from holdfast.domain.benchmark import Engines, JobSeen, JobState, Measured, Phase, Remembered
from holdfast.domain.service import BatchingLimits, ServiceKey, Slo
from holdfast.observe.objects.applied import fields_not_stored
from holdfast.observe.objects.failure_words import end_of
from holdfast.observe.objects.mapping import epoch, last_words
from holdfast.rendered.declared import run_of
from holdfast.rendered.names import BENCHMARK_CONTAINER

_MOST_WORDS = 700
_MOST_CRASHES = 4
"""After this many crashes a container is given up; Kubernetes waits about three minutes between all of them."""

_INITIALIZING = "PodInitializing"
_MOST_RPS, _MOST_SECONDS = 1e9, 86_400.0
Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One LLMBenchmark. If `declared` is None it could not be parsed, and `problem` says why.

    `not_stored`: fields of the applied manifest that the stored object lacks (see `applied`).
    """

    key: ServiceKey
    uid: str
    generation: int
    created: str
    declared: LLMBenchmark | None
    run: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    not_stored: tuple[str, ...] = ()


def benchmark_from_object(body: Object) -> Benchmark | None:
    """Return an LLMBenchmark as the watch shows it; None if it is being deleted."""
    meta = body["metadata"]
    if meta.get("deletionTimestamp"):
        return None
    declared, problem = None, ""
    try:
        declared = LLMBenchmark.parse(body)
    except InvalidLLMBenchmark as error:
        problem = str(error)
    return Benchmark(
        key=ServiceKey(meta["namespace"], meta["name"]),
        uid=str(meta.get("uid", "")),
        generation=int(meta.get("generation", 0)),
        created=str(meta.get("creationTimestamp") or ""),
        declared=declared,
        run="" if declared is None else run_of(declared),
        status=_plain(body.get("status") or {}),
        problem=problem,
        not_stored=fields_not_stored(body, LLMBENCHMARK),
    )


def remembered(status: Object) -> Remembered:
    """Return the newest run as recorded in status; empty if the status makes no sense."""
    try:
        return Remembered(Phase(status.get("phase", "Pending")), str(status.get("run", "")))
    except ValueError:
        return Remembered()


def job_seen(job: Object, pods: Iterable[Object], owner: str) -> JobSeen:
    """Return the state of a Job, and what its newest pod left; `owner` is the uid of the benchmark."""
    references = job.get("metadata", {}).get("ownerReferences") or ()
    if owner not in [reference.get("uid") for reference in references]:
        return JobSeen(JobState.FOREIGN)
    ended = {
        condition.get("type"): str(condition.get("reason", ""))
        for condition in (job.get("status") or {}).get("conditions") or ()
        if condition.get("status") == "True"
    }
    newest = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""), default=None)
    message, words = ("", "") if newest is None else _left(newest.get("status") or {})
    # A pod on a lost node never reports its end: its Job stays at FailureTarget forever and never becomes Failed.
    if "DeadlineExceeded" in (ended.get("Failed"), ended.get("FailureTarget")):
        return JobSeen(JobState.TIMED_OUT, message, words)
    state = JobState.ENDED if ended.keys() & {"Complete", "Failed"} else JobState.ACTIVE
    if state is JobState.ACTIVE and newest is None and not (job.get("status") or {}).get("ready"):
        name = job["metadata"].get("name")
        words = f"not created yet; run kubectl describe job/{name} for the cause, such as a quota"
    if state is JobState.ACTIVE and newest is not None and _never_starts(newest.get("status") or {}):
        state = JobState.BROKEN
    return JobSeen(state, message, words)


def _left(status: Object) -> tuple[str, str]:
    """Termination message of a pod, and the reason of its end."""
    state = _of_client(status)
    ended, waits = state.get("terminated") or {}, state.get("waiting") or {}
    waits = _held_up(status) if waits.get("reason") == _INITIALIZING else waits
    words = [_told(status.get("reason"), status.get("message")), *_conditions(status, "DisruptionTarget", "True")]
    if ended:
        words.append(f"{ended.get('reason') or 'ended'}, exit code {ended.get('exitCode')}")
    elif waits:
        words.append(_told(waits.get("reason"), waits.get("message")))
    else:
        words += _conditions(status, "PodScheduled", "False")
    return str(ended.get("message") or ""), "; ".join(filter(None, words))[:_MOST_WORDS]


def _of_client(status: Object) -> Object:
    """State of the container that runs the load client."""
    shown = [each for each in status.get("containerStatuses") or () if each.get("name") == BENCHMARK_CONTAINER]
    return (shown[0].get("state") or {}) if shown else {}


def _to_come(status: Object) -> list[Object]:
    """Containers that must start first and have not: the engine of a tuning run."""
    return [
        each
        for each in status.get("initContainerStatuses") or ()
        if not each.get("started") and ((each.get("state") or {}).get("terminated") or {}).get("exitCode") != 0
    ]


def _never_starts(status: Object) -> bool:
    """Whether one of them crash-loops: it would only hold its GPUs until the time limit."""
    initializes = (_of_client(status).get("waiting") or {}).get("reason") == _INITIALIZING
    return initializes and any(each.get("restartCount", 0) >= _MOST_CRASHES for each in _to_come(status))


def _held_up(status: Object) -> Object:
    """What the first of them waits for, or why it terminated."""
    for each in _to_come(status):
        waits = (each.get("state") or {}).get("waiting") or {"reason": "Starting"}
        died = (each.get("lastState") or {}).get("terminated") or {}
        return {"reason": f"{each.get('name')}: {waits.get('reason')}", "message": end_of(last_words(died, waits))}
    return {"reason": _INITIALIZING}


def _conditions(status: Object, kind: str, word: str) -> list[str]:
    """Message of a condition of the pod, if the condition has this status."""
    return [
        _told(each.get("reason"), each.get("message"))
        for each in status.get("conditions") or ()
        if (each.get("type"), each.get("status")) == (kind, word)
    ]


def _told(reason: object, message: object) -> str:
    return ": ".join(str(each) for each in (reason, message) if each)


def engines_remembered(status: Object, *, own: bool = False) -> tuple[Engines | None, str]:
    """Return the replicas at the start of a run, from its status, and what has changed since."""
    try:
        recorded = BenchmarkEngines.model_validate(status["engines"])
    except (KeyError, pydantic.ValidationError):
        return None, ""
    replicas = ((recorded.accelerator, recorded.replicas),) if recorded.accelerator else ()
    engines = Engines(replicas, recorded.generation, recorded.other_rps or 0.0, own, recorded.digest or "")
    return engines, recorded.moved or ""


def measured_by(key: ServiceKey, status: Object) -> Measured | None:
    """Return the measured capacity of one replica; None if the status has none or it cannot be true."""
    capacity = status.get("capacity")
    if not isinstance(capacity, Mapping):
        return None
    try:
        return _measured(key, capacity)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None


def _measured(key: ServiceKey, capacity: Object) -> Measured:
    measured_at = epoch(str(capacity["measuredAt"]))
    if measured_at is None:
        raise ValueError("no time")
    share = parse_percent(capacity["objective"])
    if not 0.5 < share < 1.0:
        raise ValueError(f"{share!r} is no objective")
    e2e, cv = capacity.get("e2e"), capacity.get("lengthCv")
    return Measured(
        benchmark=key.name,
        engine=str(capacity["engine"]),
        accelerator=str(capacity["accelerator"]),
        rate_rps=_positive(capacity["perReplicaRps"], _MOST_RPS),
        standard_error_rps=_positive(capacity["standardErrorRps"], _MOST_RPS),
        measured_at=measured_at,
        slo=Slo(
            _positive(parse_duration_seconds(capacity["ttft"]), _MOST_SECONDS),
            _positive(parse_duration_seconds(capacity["tpot"]), _MOST_SECONDS),
            share,
            0.0,
            None if e2e is None else _positive(parse_duration_seconds(e2e), _MOST_SECONDS),
        ),
        prompt_tokens=_positive(capacity["promptTokens"], 1e7),
        output_tokens=_positive(capacity["outputTokens"], 1e7),
        length_cv=None if cv is None else min(100.0, max(0.0, float(cv))),
        batching=BatchingLimits(_whole(capacity.get("maxNumSeqs")), _whole(capacity.get("maxNumBatchedTokens"))),
    )


def _positive(value: object, most: float) -> float:
    if not is_number(value) or not 0.0 < float(value) <= most:  # type: ignore[arg-type]
        raise ValueError(f"{value!r} is no positive number")
    return float(value)  # type: ignore[arg-type]


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def is_number(value: object) -> bool:
    """Whether a value from JSON is a finite number that is not negative."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
