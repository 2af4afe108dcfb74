"""Overlays over pod templates."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rendered.merge import strategic_merge

VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.dictionaries(st.sampled_from(["a", "b", "name", "containers"]), inner) | st.lists(inner, max_size=3)
    ),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "containers", "env", "tolerations"]), VALUES)


@pytest.mark.parametrize(
    ("base", "overlay", "merged"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"a": 1}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        (
            {"containers": [{"name": "vllm", "image": "a"}]},
            {"containers": [{"name": "log"}, {"name": "vllm", "tty": True}]},
            {"containers": [{"name": "vllm", "image": "a", "tty": True}, {"name": "log"}]},
        ),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]},
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}, {"name": "B", "value": "2"}]},
        ),
        (
            {"volumes": [{"name": "cache", "emptyDir": {}}]},
            {"volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "c"}}]},
            {"volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "c"}}]},
        ),
        (
            {"volumeMounts": [{"name": "a", "mountPath": "/a"}]},
            {"volumeMounts": [{"name": "b", "mountPath": "/a"}, {"name": "c", "mountPath": "/c"}]},
            {"volumeMounts": [{"name": "b", "mountPath": "/a"}, {"name": "c", "mountPath": "/c"}]},
        ),
        (
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "b"}, {"key": "a"}]},
            {"tolerations": [{"key": "a"}, {"key": "b"}]},
        ),
        ({"args": ["a"]}, {"args": ["b"]}, {"args": ["b"]}),
        (
            {"containers": [{"name": "vllm"}]},
            {"containers": [{"image": "nameless"}]},
            {"containers": [{"image": "nameless"}]},
        ),
    ],
)
def test_overlays_merge_as_kubernetes_merges(base: Any, overlay: Any, merged: Any) -> None:
    assert strategic_merge(base, overlay) == merged


@given(base=OBJECTS, overlay=OBJECTS)
def test_merging_never_fails_and_changes_neither_side(base: dict[str, Any], overlay: dict[str, Any]) -> None:
    before = copy.deepcopy((base, overlay))
    strategic_merge(base, overlay)
    assert (base, overlay) == before


@given(base=OBJECTS)
def test_an_empty_overlay_changes_nothing(base: dict[str, Any]) -> None:
    assert strategic_merge(base, {}) == base
