"""A prefill and a decode engine, emulated: the prompt is computed once, and each request is counted where it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.emulator.pairs import shifted
from holdfast_engine.objectives.rules import Limits, Objectives, Role
from tests.emulator.emulator_builders import FAST, Client, engine

PROMPT = {"holdfast_prompt_tokens": 2000}
ASKED = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}
ASKED |= {"remote_host": None, "remote_port": None}


@asynccontextmanager
async def pair(folder: Path, ttft_seconds: float = 5.0) -> AsyncIterator[tuple[Client, Client]]:
    """A prefill engine and a decode engine with the fast loop."""
    for role in (Role.PREFILL, Role.DECODE):
        limits = Limits(1, Objectives(ttft_seconds, 0.5), role=role)
        (folder / role.value).write_text(limits.to_json())
    async with (
        engine(replace(FAST, engine_limits=(str(folder / "Prefill"),))) as prefill,
        engine(replace(FAST, engine_limits=(str(folder / "Decode"),))) as decode,
    ):
        yield prefill, decode


async def prompt(prefill: Client) -> dict[str, Any]:
    """What a prefill engine answers to a router."""
    status, answer = await prefill.post(max_tokens=1, kv_transfer_params=ASKED, **PROMPT)
    assert status == 200
    found: dict[str, Any] = answer["kv_transfer_params"]
    return found


async def counts(client: Client) -> dict[str, float]:
    """What its plugin has counted."""
    names = ("arrived", "handed_over", "received", "good", "bad", "withdrawn")
    return {name: await client.value(f"holdfast:requests_{name}_total") for name in names}


async def test_a_prompt_is_computed_once_and_its_request_counts_where_it_ends(tmp_path: Path) -> None:
    async with pair(tmp_path) as (prefill, decode):
        told = await prompt(prefill)
        assert (told["do_remote_prefill"], told["do_remote_decode"]) == (True, False)
        assert told["holdfast"]["lease"] == 30.0
        status, answer = await decode.post(max_tokens=8, kv_transfer_params=told, **PROMPT)
        assert (status, answer["usage"]["completion_tokens"]) == (200, 8)
        assert "kv_transfer_params" not in answer
        zero = dict.fromkeys(await counts(prefill), 0.0)
        assert await counts(prefill) == zero | {"arrived": 1.0, "handed_over": 1.0}
        assert await counts(decode) == zero | {"arrived": 1.0, "received": 1.0, "good": 1.0}
        source = "vllm:prompt_tokens_by_source_total"
        assert await decode.value(source, source="local_compute") == 16.0
        assert await decode.value(source, source="external_kv_transfer") == 1984.0
        assert await decode.value("vllm:prefix_cache_hits_total") == 0.0
        assert await decode.value("vllm:external_prefix_cache_hits_total") == 1984.0


async def test_a_request_is_as_old_as_at_the_prefill_engine(tmp_path: Path) -> None:
    async with pair(tmp_path, ttft_seconds=1.0) as (prefill, decode):
        told = await prompt(prefill)
        await asyncio.sleep(1.1)
        await decode.post(max_tokens=2, kv_transfer_params=told, **PROMPT)
        assert await decode.value("holdfast:requests_bad_total", cause="ttft") == 1.0
        assert (await counts(decode))["good"] == 0.0


async def test_a_prompt_is_computed_again_where_the_lease_is_over(tmp_path: Path) -> None:
    async with pair(tmp_path) as (prefill, decode):
        told = shifted(await prompt(prefill), -25.0)
        assert told is not None
        status, _ = await decode.post(max_tokens=2, kv_transfer_params=told, **PROMPT)
        assert status == 200
        assert await decode.value("holdfast:kv_expired_total") == 1.0
        assert await decode.value("vllm:prompt_tokens_by_source_total", source="local_compute") == 2000.0


@pytest.mark.parametrize("params", [None, {}, {"do_remote_prefill": False, "holdfast": "soon"}])
async def test_a_decode_engine_serves_whole_requests(params: dict[str, Any] | None, tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, decode):
        status, answer = await decode.post(max_tokens=2, kv_transfer_params=params, **PROMPT)
        assert (status, answer["usage"]["completion_tokens"]) == (200, 2)
        assert (await counts(decode))["received"] == 0.0
        assert await decode.value("vllm:prompt_tokens_by_source_total", source="local_compute") == 2000.0


async def test_an_engine_without_the_plugin_hands_a_prompt_over_as_vllm_does() -> None:
    async with engine() as prefill, engine() as decode:
        told = await prompt(prefill)
        assert "holdfast" not in told
        await decode.post(max_tokens=2, kv_transfer_params=told, **PROMPT)
        assert await decode.value("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 1984.0


async def test_what_is_no_object_is_refused() -> None:
    async with engine() as client:
        status, answer = await client.post(kv_transfer_params=[1], **PROMPT)
        assert (status, answer["error"]["param"]) == (400, "kv_transfer_params")
