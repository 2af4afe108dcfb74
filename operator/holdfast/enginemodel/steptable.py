"""Step times by interpolation in the shipped tables (data/ATTRIBUTION.md says where they come from)."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from holdfast.enginemodel.steplaw import Chunk


@dataclass(frozen=True, slots=True)
class Curve:
    """Piecewise linear; constant below the first point, extrapolated linearly above the last."""

    xs: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, x: float) -> float:
        if x <= self.xs[0]:
            return self.values[0]
        left, share = _cell(self.xs, x)
        return self.values[left] + share * (self.values[left + 1] - self.values[left])

    def parted(self, first: float, more: float) -> Curve:
        """With so many times its first value, and of what each value is above that."""
        return Curve(self.xs, _times(more, self.values, (first - more) * self.values[0]))


@dataclass(frozen=True, slots=True)
class Surface:
    """Bilinear over xs x ys (values row by row in x); bounded like a Curve on both axes."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, x: float, y: float) -> float:
        row, across = _cell(self.xs, max(x, self.xs[0]))
        column, along = _cell(self.ys, max(y, self.ys[0]))
        corner = row * len(self.ys) + column
        below = corner + len(self.ys)
        values = self.values
        near = values[corner] + along * (values[corner + 1] - values[corner])
        far = values[below] + along * (values[below + 1] - values[below])
        return near + across * (far - near)


def _times(factor: float, values: Sequence[float], more: float = 0.0) -> tuple[float, ...]:
    return tuple(factor * value + more for value in values)


def _cell(grid: tuple[float, ...], x: float) -> tuple[int, float]:
    """Index of the interval that x is in (the last one for larger x), and how far along it x is."""
    left = min(bisect_right(grid, x), len(grid) - 1) - 1
    return left, (x - grid[left]) / (grid[left + 1] - grid[left])


@dataclass(frozen=True, slots=True)
class StepTable:
    """Measured or modelled GPU times of the steps of one model on one accelerator; all curves in seconds.

    `kv_bytes_per_token` and `weights_bytes` are per GPU. Tokens outside attention cost the same whether they belong
    to a prompt or a decode, but a step without any prompt chunk runs from full CUDA graphs and has its own curve. What
    the host needs is not in it (`enginemodel.host`).
    """

    model: str
    system: str
    tensor_parallel: int
    kv_bytes_per_token: float
    weights_bytes: float
    mixed: Curve
    decode_only: Curve
    chunk_attention: Surface
    decode_attention: Surface

    def step_seconds(self, chunks: Sequence[Chunk], decodes: int, mean_kv: float) -> float:
        """GPU seconds of a step with these prompt chunks and `decodes` sequences of `mean_kv` KV tokens on average."""
        seconds = 0.0
        if chunks:
            seconds += self.mixed.at(decodes + sum(chunk for chunk, _ in chunks))
            for chunk, prefix in chunks:
                seconds += self.chunk_attention.at(chunk, prefix)
        elif decodes:
            seconds += self.decode_only.at(decodes)
        if decodes:
            seconds += self.decode_attention.at(decodes, mean_kv)
        return seconds

    def scaled(self, factor: float) -> StepTable:
        """With so many times the seconds of every step."""
        chunks, decodes = (
            replace(surface, values=_times(factor, surface.values))
            for surface in (self.chunk_attention, self.decode_attention)
        )
        mixed, decode_only = (curve.parted(factor, factor) for curve in (self.mixed, self.decode_only))
        return replace(self, mixed=mixed, decode_only=decode_only, chunk_attention=chunks, decode_attention=decodes)

    def parted(self, fixed: float, prompt: float) -> StepTable:
        """With so many times the seconds of every step, and of prompt tokens; what decodes add stays."""
        return replace(
            self,
            mixed=self.mixed.parted(fixed, prompt),
            decode_only=self.decode_only.parted(fixed, 1.0),
            chunk_attention=replace(self.chunk_attention, values=_times(prompt, self.chunk_attention.values)),
        )


@cache
def step_tables() -> Mapping[tuple[str, str, int], StepTable]:
    """All shipped tables by (model, system, tensor parallel size)."""
    packed = resources.files("holdfast.enginemodel").joinpath("data/step_tables.json.gz").read_bytes()
    content = json.loads(gzip.decompress(packed))
    tables = (_table(entry, content["grids"]) for entry in content["tables"])
    return {(table.model, table.system, table.tensor_parallel): table for table in tables}


def _table(entry: dict[str, object], grids: dict[str, dict[str, list[float]]]) -> StepTable:
    milliseconds: dict[str, list[float]] = entry["ms"]  # type: ignore[assignment]

    def curve(kind: str) -> Curve:
        return Curve(tuple(grids[kind]["x"]), _seconds(milliseconds[kind]))

    def surface(kind: str) -> Surface:
        return Surface(tuple(grids[kind]["x"]), tuple(grids[kind]["y"]), _seconds(milliseconds[kind]))

    return StepTable(
        model=str(entry["model"]),
        system=str(entry["system"]),
        tensor_parallel=int(str(entry["tp"])),
        kv_bytes_per_token=float(str(entry["kv_bytes_per_token"])),
        weights_bytes=float(str(entry["weights_bytes"])),
        mixed=curve("nonattn_ctx"),
        decode_only=curve("nonattn_dec"),
        chunk_attention=surface("ctx_attn"),
        decode_attention=surface("dec_attn"),
    )


def _seconds(milliseconds: list[float]) -> tuple[float, ...]:
    return tuple(value * 1e-3 for value in milliseconds)
