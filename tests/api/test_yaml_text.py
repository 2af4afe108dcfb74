"""Manifests mean to `holdfast` what they mean to kubectl."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from holdfast.api.yamltext import read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18:00", "18:00"),
        ("08:00", "08:00"),
        ("24:00", "24:00"),
        ("1:30:15.5", "1:30:15.5"),
        ("2026-11-22", "2026-11-22"),
        ("2026-11-22T08:00:00Z", "2026-11-22T08:00:00Z"),
        ("18", 18),
        ("-3", -3),
        ("0x1f", 31),
        ("1.5", 1.5),
        ("1.0e+3", 1000.0),
        (".inf", float("inf")),
        ("true", True),
        ("null", None),
        ("~", None),
        ("99%", "99%"),
        ('"18"', "18"),
        ("!!int 18", 18),
        ("{a: [18:00, 1], 17:30: b}", {"a": ["18:00", 1], "17:30": "b"}),
    ],
)
def test_plain_scalars_are_read_as_kubectl_reads_them(text: str, value: Any) -> None:
    assert read_yaml(text) == value
    assert type(read_yaml(text)) is type(value)


@pytest.mark.parametrize(
    "text", ["[", "a: b: c", "!!python/object/apply:os.getcwd []", pytest.param("[" * 20_000, id="deep")]
)
def test_what_is_no_yaml_or_would_run_code_is_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        read_yaml(text)
