"""Whether the API server and the types say the same of an object: each rule is written once, in CEL and in Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from e2e.campaign import specs
from e2e.cluster.apiclient import ApiClient, ApiError
from holdfast.api.crd import LLMBENCHMARK, LLMSERVICE
from holdfast.api.llmbenchmark import LLMBenchmark
from holdfast.api.llmservice import LLMService
from holdfast.api.parsing import InvalidObject

Json = dict[str, Any]

_REFUSED = (400, 422)
_TYPES: dict[str, Callable[[Json], object]] = {
    LLMSERVICE.kind: LLMService.parse,
    LLMBENCHMARK.kind: LLMBenchmark.parse,
}


@dataclass(frozen=True, slots=True)
class Answers:
    """What was said of one object, empty where it is accepted: by the API server, and by the types.

    `stored` is what the types say of the object as the API server stores it; that is what the operator reads.
    """

    body: Json
    server: str
    types: str
    stored: str = ""

    @property
    def agree(self) -> bool:
        """Whether it is accepted by both, also as it is stored, or refused by both."""
        return bool(self.server) == bool(self.types) and not self.stored

    def told(self) -> str:
        """The disagreement in words."""
        said = {"API server": self.server, "types": self.types, "types, as stored": self.stored}
        lines = [f"  {who}: {text or 'accepted'}" for who, text in said.items()]
        return "\n".join([json.dumps(self.body["spec"], ensure_ascii=True), *lines])


def asked(api: ApiClient, seed: int, numbers: Iterable[int]) -> Iterator[Answers]:
    """Draw objects and ask about each; nothing is stored."""
    for number in numbers:
        yield answers(api, specs.drawn(seed, number))


def dry_run(api: ApiClient, body: Json) -> Json:
    """Create an object without keeping it: as it would be stored. Raises ApiError where it is refused."""
    path = f"/apis/{body['apiVersion']}/namespaces/default/{specs.plural(body)}?dryRun=All&fieldValidation=Strict"
    stored: Json = api.create(path, body)
    return stored


def answers(api: ApiClient, body: Json) -> Answers:
    """Ask both about an object."""
    said = refusal(body)
    try:
        stored = dry_run(api, body)
    except ApiError as error:
        if error.status not in _REFUSED:
            raise
        return Answers(body, str(error), said)
    return Answers(body, "", said, refusal(stored))


def refusal(body: Json) -> str:
    """What the types say against an object; empty where they accept it."""
    try:
        _TYPES[body["kind"]](body)
    except InvalidObject as error:
        return str(error)
    return ""
