"""The shipped tables against the data they were made from."""

from __future__ import annotations

import csv
import gzip
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.enginemodel.steptable import StepTable, step_tables
from tests.shared_data import shared_data

pytestmark = pytest.mark.data

SHIPPED = Path(__file__).parents[2] / "operator/holdfast/enginemodel/data/step_tables.json.gz"


def packer() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts/make_step_tables.py"
    spec = importlib.util.spec_from_file_location("make_step_tables", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_packed_file_is_what_the_script_makes_of_the_data() -> None:
    packed = packer().packed(shared_data("itertime"))
    assert gzip.decompress(packed) == gzip.decompress(SHIPPED.read_bytes())


def test_packing_twice_gives_the_same_bytes() -> None:
    data = shared_data("itertime")
    assert packer().packed(data) == packer().packed(data)


def test_the_packed_file_is_small() -> None:
    assert SHIPPED.stat().st_size < 500_000


def value_at(table: StepTable, kind: str, x: float, y: float) -> float:
    if kind == "nonattn_ctx":
        return table.mixed.at(x)
    if kind == "nonattn_dec":
        return table.decode_only.at(x)
    return (table.chunk_attention if kind == "ctx_attn" else table.decode_attention).at(x, y)


def test_every_point_of_the_data_is_reproduced() -> None:
    tables, worst, points = step_tables(), 0.0, 0
    with gzip.open(shared_data("itertime", "aiconfigurator_vllm_step_tables.csv.gz"), "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            table = tables[row["model"], row["system"], int(row["tp"])]
            seconds = value_at(table, row["kind"], float(row["x"]), float(row["y"]))
            worst = max(worst, abs(seconds * 1e3 / float(row["ms"]) - 1.0))
            points += 1
    assert points == 41_280
    assert worst < 1e-9
