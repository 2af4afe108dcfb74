"""The bytes of a request: a prompt of the wanted length, and what is asked of the engine."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from holdfast.tools.bench.generators.connections import Origin
from holdfast.tools.bench.load.load_generator import Api, ClassShare, Endpoint, Planned, PromptKind

# Each is one token, with the space before it, in the vocabularies of the model families that are served today.
_WORDS = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother area
money story fact month lot right study book eye job word business issue side kind head house service friend father
power hour game line end member law car city community name president team minute idea body information back parent
face others level office door health person art war history party result change morning reason research girl guy
moment air teacher force education
"""
FIRST_ID, IDS = 1, 250
"""Token ids that even the smallest vocabularies have; 0 is often the padding."""


class RequestBuilder:
    """Builds the requests of a run. No two prompts begin alike but those of a session, whatever the seed.

    An engine keeps what it computed of a prompt: who sends one again, in the next trial or in the next run, measures
    its prefix cache. `seed` draws the class of each request.
    """

    def __init__(self, endpoint: Endpoint, seed: int = 1) -> None:
        self._endpoint, self._seed = endpoint, seed
        self._draw = random.Random()  # from the system's entropy
        is_words = endpoint.api is Api.CHAT or endpoint.prompts is PromptKind.WORDS
        self._vocabulary: Sequence[str | int] = _WORDS.split() if is_words else range(FIRST_ID, FIRST_ID + IDS)
        self._run = f"{self._draw.getrandbits(32):08x}"
        self._prefixes = [self._drawn(endpoint.prefix_tokens) for _ in range(endpoint.sessions)]

    @property
    def url(self) -> str:
        """Where they go; the endpoint's address may end with /v1 or not."""
        return path_of(self._endpoint.url, "chat/completions" if self._endpoint.api is Api.CHAT else "completions")

    def build(self, index: int, planned: Planned) -> bytes:
        """The body as JSON."""
        endpoint = self._endpoint
        fields: dict[str, Any] = {
            "model": adapter if (adapter := self.slo_class(index)) in endpoint.adapters else endpoint.model,
            "max_tokens": planned.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if endpoint.ignore_eos:
            fields["ignore_eos"] = True
        tokens = self._prompt(index, planned.prompt_tokens)
        if endpoint.api is Api.CHAT:
            fields["messages"] = [{"role": "user", "content": " ".join(map(str, tokens))}]
        else:
            fields["prompt"] = tokens if endpoint.prompts is PromptKind.IDS else " ".join(map(str, tokens))
        return json.dumps(fields, separators=(",", ":")).encode()

    def slo_class(self, index: int) -> str:
        """The class of this request, or the adapter that it is for; empty for none."""
        classes = self._endpoint.classes
        return class_by_lot(classes, self._seed, index) if classes else ""

    def framed(self, url: str, index: int, body: bytes) -> bytes:
        """The whole request as HTTP/1.1; the key goes to the origin of the endpoint alone."""
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        fields = [
            f"POST {target} HTTP/1.1",
            f"Host: {parts.netloc.rpartition('@')[2]}",
            "User-Agent: holdfast-bench",
            "Accept: text/event-stream",
            "Accept-Encoding: identity",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            f"X-Request-Id: bench-{self._run}-{index}",
        ]
        if self._prefixes:
            fields.append(f"X-Session-Id: bench-{self._run}-session-{self._session(index)}")
        if (name := self.slo_class(index)) and name not in self._endpoint.adapters:
            fields.append(f"X-SLO-Class: {name}")
        if self._endpoint.api_key and Origin.of(url) == Origin.of(self._endpoint.url):
            fields.append(f"Authorization: Bearer {self._endpoint.api_key}")
        return "\r\n".join(fields).encode() + b"\r\n\r\n" + body

    def _session(self, index: int) -> int:
        """By lot, so that no router that takes replicas in turn keeps a session at one of them by accident."""
        return random.Random(f"{self._run}-{index}").randrange(self._endpoint.sessions)

    def _prompt(self, index: int, count: int) -> list[str | int]:
        shared = self._prefixes[self._session(index)][:count] if self._prefixes else []
        return shared + self._drawn(count - len(shared))

    def _drawn(self, count: int) -> list[str | int]:
        return self._draw.choices(self._vocabulary, k=count)


def class_by_lot(classes: Sequence[ClassShare], seed: int, index: int) -> str:
    """One of the classes, each with the chance that is its share, or none of them; the same again for the same seed."""
    left = random.Random(f"class {seed} {index}").random()
    for each in classes:
        left -= each.share
        if left < 0.0:
            return each.name
    return ""


def path_of(url: str, name: str) -> str:
    """The address of one of the API's paths below /v1, a query kept."""
    parts = urlsplit(url)
    base = parts.path.rstrip("/")
    base = base if base.endswith("/v1") else f"{base}/v1"
    return parts._replace(path=f"{base}/{name}", fragment="").geturl()
