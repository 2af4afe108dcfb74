"""What running engines were told, what they show to be in force, and how fast one follows the other."""

from __future__ import annotations

import json
import statistics
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from e2e.kubectl import Json, Kubectl
from e2e.patience import patient

ANNOTATION = "holdfast.dev/engine-limits"
APPLY_SECONDS = 3.0
"""From the annotation to the engine's own metrics, at most."""
CHANGES = 3
"""Of which the median is held to that: one may meet a moment in which a host runs nothing at all."""


def alive(place: Kubectl, service: str) -> list[Json]:
    """Pods of a service that are not being deleted."""
    found = place.items("pods", f"holdfast.dev/service={service}")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def told(place: Kubectl, service: str) -> dict[str, dict[str, Any]]:
    """The limits in the annotation of each pod that has one."""
    found = {
        pod["metadata"]["name"]: pod["metadata"].get("annotations", {}).get(ANNOTATION) for pod in alive(place, service)
    }
    return {name: json.loads(text) for name, text in found.items() if text}


def tell(place: Kubectl, pod: str, limits: dict[str, Any]) -> float:
    """Write limits to a pod as a person would, in new versions; seconds until its engine shows one, the median."""
    engine, first = engine_url(place, pod), limits["version"]
    return statistics.median(_tell(place, pod, engine, {**limits, "version": first + n}) for n in range(CHANGES))


@dataclass(frozen=True, slots=True)
class Edit:
    """Seconds from an edit of an LLMService until all its pods were told, and from then until all engines show it."""

    told_seconds: float
    apply_seconds: float


def edit_ttft(place: Kubectl, service: str, *objectives_seconds: float) -> Edit:
    """Edit the TTFT of a service, to one value after the other; the medians."""
    edits = [_edit_ttft(place, service, seconds) for seconds in objectives_seconds]
    told_at, applied_at = (statistics.median(each) for each in zip(*edits, strict=True))
    return Edit(told_at, applied_at)


def insist(place: Kubectl, pod: str, limits: dict[str, Any]) -> None:
    """Write limits to a pod until its engine shows them, while an operator puts its own in their place at every tick.

    The kubelet shows what a pod has when it looks: limits that stand for less time than that reach no engine.
    """
    engine, looks_seconds = engine_url(place, pod), 1.0

    def took_them() -> bool:
        place.run("annotate", "pod", pod, "--overwrite", f"{ANNOTATION}={json.dumps(limits)}")
        until = time.monotonic() + looks_seconds
        while time.monotonic() < until and shown(engine)["version"] != limits["version"]:
            time.sleep(0.05)
        return bool(shown(engine)["version"] == limits["version"])

    place.wait_until(took_them, 30, f"an engine with limits of version {limits['version']}")


def _tell(place: Kubectl, pod: str, engine: str, limits: dict[str, Any]) -> float:
    place.run("annotate", "pod", pod, "--overwrite", f"{ANNOTATION}={json.dumps(limits)}")
    return seconds_until(lambda: shown(engine)["version"] == limits["version"], time.monotonic())


def _edit_ttft(place: Kubectl, service: str, seconds: float) -> tuple[float, float]:
    engines = [engine_url(place, pod["metadata"]["name"]) for pod in alive(place, service)]
    assert all(shown(engine)["ttft_seconds"] != seconds for engine in engines), "an edit that changes nothing"
    started = time.monotonic()
    place.patch("llms", service, {"spec": {"slo": {"ttft": f"{seconds:g}s"}}})
    told_at = seconds_until(
        lambda: all(limits["ttftSeconds"] == seconds for limits in told(place, service).values()), started
    )
    took = seconds_until(lambda: all(shown(engine)["ttft_seconds"] == seconds for engine in engines), started)
    print(f"annotations {told_at:.1f} s and engines {took:.1f} s after the edit")
    return told_at, took - told_at


def in_force(place: Kubectl, pod: str) -> dict[str, float]:
    """The limits that the engine of a pod shows."""
    return shown(engine_url(place, pod))


def engine_url(place: Kubectl, pod: str) -> str:
    """Where the engine of a pod is reached, to be asked often: kubectl takes longer than an engine does to follow."""
    return f"http://{place.get_json('pod', pod)['status']['podIP']}:8000"


def shown(engine: str) -> dict[str, float]:
    """The limits that an engine shows at its own /metrics."""
    with urllib.request.urlopen(f"{engine}/metrics", timeout=patient(10.0)) as answer:
        return limits_on(answer.read().decode())


def limits_on(page: str) -> dict[str, float]:
    """The limits on a page of metrics, by name; all else there is hundreds of lines that take long to read."""
    lines = [line for line in page.splitlines() if line.startswith("holdfast:limits{")]
    families = text_string_to_metric_families("\n".join([*lines, ""]))
    return {sample.labels["name"]: sample.value for family in families for sample in family.samples}


def seconds_until(is_true: Callable[[], bool], started: float, seconds: float = 30.0) -> float:
    """Seconds from `started` (monotonic) until it is true."""
    while not is_true():
        assert time.monotonic() - started < patient(seconds), f"not within {patient(seconds):.0f} s"
        time.sleep(0.05)
    return time.monotonic() - started
