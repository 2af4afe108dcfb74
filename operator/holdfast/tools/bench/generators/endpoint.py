"""What can be learnt of an endpoint before it is loaded."""

from __future__ import annotations

import json
import ssl
from dataclasses import replace

import aiohttp

from holdfast.tools.bench.generators.requests import path_of
from holdfast.tools.bench.load.load_generator import Endpoint

LOOK_SECONDS = 10.0


class NoEndpoint(Exception):
    """Nobody answers as an OpenAI-compatible server would; the message names the remedy."""


async def found_at(endpoint: Endpoint) -> Endpoint:
    """The endpoint with its LoRA adapters, and with the model to ask for: the given one, or the only one served;
    NoEndpoint where it cannot be read."""
    url, wanted = endpoint.url, endpoint.model
    status, body = await fetch(path_of(url, "models"), endpoint)
    if status in (401, 403):
        raise NoEndpoint(f"{url} answers {status}: give its key with --api-key-file or HOLDFAST_API_KEY")
    parents = _parents(body)
    names, models = list(parents), [name for name, parent in parents.items() if not parent]
    endpoint = replace(endpoint, adapters=frozenset(names) - {*models})
    if wanted:
        if names and wanted not in names:
            raise NoEndpoint(f"{url} does not serve {wanted!r} but {', '.join(names)}: give one of these with --model")
        return endpoint
    if len(models) != 1:
        if names:
            raise NoEndpoint(f"{url} serves {', '.join(names)}: give one with --model")
        raise NoEndpoint(
            f"{url} does not list its models (status {status}): give the server's address as --url, as "
            "http://host:8000 or up to /v1, or give a model with --model"
        )
    return replace(endpoint, model=models[0])


async def fetch(url: str, endpoint: Endpoint) -> tuple[int, str]:
    """Status and text of a GET with the endpoint's key; NoEndpoint where nobody answers."""
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    timeout = aiohttp.ClientTimeout(total=LOOK_SECONDS)
    try:
        context = ssl.create_default_context(cafile=endpoint.ca_file) if endpoint.ca_file else True
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.get(url, ssl=context) as response,
        ):
            return response.status, await response.text(errors="replace")
    except (aiohttp.ClientError, TimeoutError, OSError, UnicodeError) as problem:
        told = str(problem) or f"no answer within {LOOK_SECONDS:g} s"
        raise NoEndpoint(f"cannot reach {url}: {told}: check --url") from None


def _parents(text: str) -> dict[str, str]:
    """The model that each served name is an adapter of; empty where it is none."""
    try:
        rows = json.loads(text)["data"]
        return {str(row["id"]): str(row.get("parent") or "") for row in rows}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
