"""A request that passes from a prefill engine to a decode engine: `kv_transfer_params` of vLLM's NIXL connector.

Source: vLLM 0.32, distributed/kv_transfer/kv_connector/v1/nixl. No blocks are kept: a transfer takes no time, and the
memory of a prefill engine is free once it has answered.
"""

from __future__ import annotations

from typing import Any

from holdfast.enginemodel.scheduler import BLOCK_TOKENS, Sequence
from holdfast_engine.objectives.handover import KEY, goes_on

LEASE_SECONDS = 30.0
"""vLLM's kv_lease_duration."""
_SIDE_CHANNEL_PORT = 5600
_TIMES = ("arrived", "finished")

Params = dict[str, Any]


def left_behind(sequence: Sequence, engine: str, request: str) -> Params | None:
    """What an engine of this name tells of the blocks that a request leaves; None for one that ends with it."""
    if not goes_on(sequence):
        return None
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": engine,
        "remote_request_id": request,
        "remote_block_ids": [list(range(1, 1 + -(-sequence.prompt_tokens // BLOCK_TOKENS)))],
        "remote_host": "127.0.0.1",
        "remote_port": _SIDE_CHANNEL_PORT,
        "tp_size": 1,
    }


def read_blocks(sequence: Sequence) -> None:
    """Have a decode engine find what a prefill engine has left: all but the last block."""
    if (sequence.kv_transfer_params or {}).get("do_remote_prefill"):
        sequence.read_tokens = max(0, sequence.prompt_tokens - BLOCK_TOKENS - sequence.cached_tokens)
        sequence.cached_tokens += sequence.read_tokens


def shifted(params: Params | None, seconds: float) -> Params | None:
    """The same with the plugin's times by another clock, which is so many seconds ahead."""
    told = (params or {}).get(KEY)
    if params is None or not isinstance(told, dict):
        return params
    times = {name: told[name] + seconds for name in _TIMES if isinstance(told.get(name), int | float)}
    return {**params, KEY: {**told, **times}}
