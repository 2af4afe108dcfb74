"""Step tables from LLMServingSim's per-layer profiles of vLLM 0.19 (casys-kaist/LLMServingSim, MIT)."""

from __future__ import annotations

import csv
import io
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from holdfast.enginemodel.catalog import ModelShape
from holdfast.enginemodel.steptable import Curve, StepTable, Surface

_EACH_LAYER = {
    "layernorm": 2,
    "qkv_proj": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
_ONCE = ("embedding", "final_layernorm")

Times = Mapping[int, float]
ProfileRow = Mapping[str, str]


def profiled_table(archive: Path, hardware: str, model: ModelShape, tensor_parallel: int) -> StepTable:
    """The table of one model on one kind of GPU, with the time of a layer counted once per layer; no host time in it.

    Attention of a step's chunks and of its decodes are added up, as in the shipped tables. What is done once per
    sequence is taken for as many sequences as there are tokens, up to the most that were profiled.
    """
    folder = f"perf/{hardware}/{model.name}/bf16/tp{tensor_parallel}"
    with tarfile.open(archive) as packed:
        dense, heads, attention = (
            _rows(packed, f"{folder}/{name}.csv") for name in ("dense", "per_sequence", "attention")
        )
    tokens = _curve(_body_seconds(dense, model.layers), _head_seconds(heads))
    return StepTable(
        model=model.name,
        system=hardware,
        tensor_parallel=tensor_parallel,
        kv_bytes_per_token=model.kv_bytes_per_token / tensor_parallel,
        weights_bytes=model.parameters * model.weight_bytes / tensor_parallel,
        mixed=tokens,
        decode_only=tokens,
        chunk_attention=_surface(attention, model.layers, "prefill_chunk", "kv_prefill", without="n_decode"),
        decode_attention=_surface(attention, model.layers, "n_decode", "kv_decode", without="prefill_chunk"),
    )


def _rows(packed: tarfile.TarFile, name: str) -> list[dict[str, str]]:
    found = packed.extractfile(name)
    assert found is not None
    return list(csv.DictReader(io.TextIOWrapper(found, "utf-8")))


def _body_seconds(rows: Iterable[ProfileRow], layers: int) -> Times:
    """Everything but attention and heads, by tokens in the step."""
    seconds: dict[int, float] = defaultdict(float)
    for row in rows:
        times = 1 if row["layer"] in _ONCE else layers * _EACH_LAYER[row["layer"]]
        seconds[int(row["tokens"])] += times * float(row["time_us"]) * 1e-6
    return seconds


def _head_seconds(rows: Iterable[ProfileRow]) -> Times:
    """Heads and sampling, by sequences."""
    seconds: dict[int, float] = defaultdict(float)
    for row in rows:
        seconds[int(row["sequences"])] += float(row["time_us"]) * 1e-6
    return seconds


def _curve(body: Times, heads: Times) -> Curve:
    xs = sorted(body)
    per_sequence = np.interp(xs, sorted(heads), [heads[count] for count in sorted(heads)])
    return Curve(tuple(map(float, xs)), tuple(body[x] + float(more) for x, more in zip(xs, per_sequence, strict=True)))


def _surface(rows: Iterable[ProfileRow], layers: int, x: str, y: str, without: str) -> Surface:
    alone = {(int(row[x]), int(row[y])): float(row["time_us"]) for row in rows if row[without] == "0" and row[x] != "0"}
    xs, ys = (sorted({point[axis] for point in alone}) for axis in (0, 1))
    values = tuple(layers * alone[a, b] * 1e-6 for a in xs for b in ys)
    return Surface(tuple(map(float, xs)), tuple(map(float, ys)), values)
