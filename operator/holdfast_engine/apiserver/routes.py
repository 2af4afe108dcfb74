"""The routes at which vLLM generates: what is asked there goes to the engine, and is counted, judged and turned away.

Of the POST routes of vLLM 0.32 and 0.33, all others tokenize, embed, score or steer (`e2e/engine/test_engine_routes.py`
compares both releases with this table). Not in it is the WebSocket `/v1/realtime`, which is no HTTP request.
"""

from __future__ import annotations

GENERATING = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/responses",
    "/v1/messages",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/decisions",
    "/v1/systemone",
    "/generative_scoring",
    "/inference/v1/generate",
    "/cohere/v2/chat",
    "/invocations",
)
"""The pod's middleware has its own copy (`ENGINE_PATHS`), because it runs without the plugin."""

WITH_KEY = ("/v1", "/v2", "/inference", "/cohere")
"""Beginnings of the paths for which vLLM asks for its API key."""
