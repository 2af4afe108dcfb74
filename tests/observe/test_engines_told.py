"""Which pods read limits, and what they were told."""

from __future__ import annotations

import copy
from typing import Any

import kopf
import pytest

from holdfast.observe.objects.engines import engine_from_pod, limits_from_config_map
from tests.observe.test_mapping import pod

GOOD = '{"version": 7, "ttftSeconds": 1.0, "tpotSeconds": 0.05}'
FIELD = "metadata.annotations['holdfast.dev/engine-limits']"
ITEMS = {"items": [{"path": "engine-limits", "fieldRef": {"fieldPath": FIELD}}]}


def reading(body: dict[str, Any], text: str | None = None, volume: dict[str, Any] | None = None) -> dict[str, Any]:
    """The pod with a volume that shows its limits, and with that annotation."""
    found = copy.deepcopy(body)
    found["spec"]["volumes"] = [
        {"name": "cache", "emptyDir": {}},
        {"name": "limits", **(volume or {"downwardAPI": ITEMS})},
    ]
    if text is not None:
        found["metadata"]["annotations"] = {"holdfast.dev/engine-limits": text}
    return found


@pytest.mark.parametrize("volume", [{"downwardAPI": ITEMS}, {"projected": {"sources": [{}, {"downwardAPI": ITEMS}]}}])
def test_a_pod_reads_limits_through_a_volume_of_either_kind(volume: dict[str, Any]) -> None:
    engine = engine_from_pod(kopf.Body(reading(pod(), GOOD, volume)))
    assert engine is not None
    assert (engine.accelerator, engine.told and engine.told.version) == ("h100", 7)


@pytest.mark.parametrize(
    "volume",
    [
        {"emptyDir": {}},
        {"downwardAPI": None},
        {"downwardAPI": {"items": [{"path": "x", "resourceFieldRef": {"resource": "limits.cpu"}}]}},
        {"projected": {"sources": None}},
        {"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ],
)
def test_a_pod_without_the_plugin_is_left_alone(volume: dict[str, Any]) -> None:
    assert engine_from_pod(reading(pod(), GOOD, volume)) is None
    assert engine_from_pod(pod()) is None


def test_a_pod_that_ends_is_told_nothing_more() -> None:
    body = reading(pod(), GOOD)
    body["metadata"]["deletionTimestamp"] = "2026-11-21T04:00:00Z"
    assert engine_from_pod(body) is None


@pytest.mark.parametrize("text", [None, "", "{", "[]", "null", '{"version": -1}', GOOD.replace("1.0", "1e999")])
def test_what_an_engine_would_pass_over_counts_as_not_told(text: str | None) -> None:
    engine = engine_from_pod(reading(pod(), text))
    assert engine is not None
    assert engine.told is None


@pytest.mark.parametrize("data", [None, {}, {"h100": ""}])
def test_a_config_map_with_nothing_usable_tells_nothing(data: dict[str, str] | None) -> None:
    meta = {"name": "chat-engine-limits", "labels": {"holdfast.dev/service": "chat"}}
    assert limits_from_config_map({"metadata": meta, "data": data}) == ()
