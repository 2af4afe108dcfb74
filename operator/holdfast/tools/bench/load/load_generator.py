"""The port of load generators: what is asked of one, and what it gives back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from holdfast.tools.bench.load.records import RequestRecord

MOST_TOKENS = 1_000_000
MOST_REQUESTS = 5_000_000


class Api(StrEnum):
    """The two ways to ask an OpenAI-compatible server for text."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class PromptKind(StrEnum):
    """What prompts are made of: common words, about one token each, or token ids, for engines that take them."""

    WORDS = "words"
    IDS = "ids"


@dataclass(frozen=True, slots=True)
class LatencyBounds:
    """Bounds in seconds that a good request keeps, each of them; None is no bound."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    e2e_seconds: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked for but an answer."""
        return self == LatencyBounds()


@dataclass(frozen=True, slots=True)
class ClassShare:
    """This share of all requests claims a class, or is for an adapter of this name; its good requests keep `bounds`,
    None for those of all requests."""

    name: str
    share: float
    bounds: LatencyBounds | None = None


BATCH = 8
"""Requests of a batch by default, as vLLM's `bench latency` has it."""


@dataclass(frozen=True, slots=True)
class LoadStep:
    """From `at_seconds` on, this rate."""

    at_seconds: float
    rps: float


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go and how they are put; `api_key` is never shown."""

    url: str
    model: str
    api: Api = Api.COMPLETIONS
    api_key: str = ""
    prompts: PromptKind = PromptKind.WORDS
    ignore_eos: bool = True
    timeout_seconds: float = 600.0
    ca_file: str = ""
    sessions: int = 0
    prefix_tokens: int = 0
    """Each prompt begins with the prefix of one of so many sessions; 0 sessions: no two prompts begin alike."""
    classes: tuple[ClassShare, ...] = ()
    """The rest of the requests claims no class."""
    adapters: frozenset[str] = frozenset()
    """Names of LoRA adapters: a request of such a class names it as its model, and claims nothing."""

    def __repr__(self) -> str:
        return f"Endpoint({self.url}, {self.model})"


@dataclass(frozen=True, slots=True)
class Planned:
    """One request to send: seconds after the start (open loop alone), and lengths in tokens."""

    at_seconds: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class ArrivalRate:
    """Arrivals of one mean rate, for generators that make their own: requests/s, CV of the gaps, fixed lengths."""

    rps: float
    cv: float
    prompt_tokens: int
    output_tokens: int


def never() -> bool:
    """The default of what ends a load early."""
    return False


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent.

    Open loop (`concurrency` 0): each request leaves at its moment, however slow answers are. Closed loop: so many are
    under way, and the next leaves when one ends, until `stop_after_seconds`. `batches`: the next ones leave together
    when all of them have ended. `drain_seconds` after the last request has left, the rest counts as unfinished.
    Once `stopped` is true, an open loop sends no more and gives up what is under way.
    """

    planned: Iterable[Planned]
    expected: int
    concurrency: int = 0
    batches: bool = False
    stop_after_seconds: float = math.inf
    drain_seconds: float = 60.0
    seed: int = 1
    rate: ArrivalRate | None = None
    stopped: Callable[[], bool] = never


@dataclass(frozen=True, slots=True)
class Client:
    """What the client says of itself: seconds that 1 % of requests were sent late, and 1 % of events read late."""

    lateness_p99_seconds: float
    lag_p99_seconds: float
    lag_most_seconds: float
    cpu_share: float
    kernel_times: bool = False

    def overloaded(self, allowed_seconds: float, gap_seconds: float) -> str:
        """Why what this client measured is not to be trusted, or an empty text.

        With `kernel_times`, events have the moment of their arrival however late they are read, as long as a stream is
        read once per token: `gap_seconds` is the usual time between two of them.
        """
        if self.lateness_p99_seconds > allowed_seconds:
            return f"requests left {1000 * self.lateness_p99_seconds:.1f} ms late (p99)"
        if self.lag_p99_seconds > max(allowed_seconds, gap_seconds if self.kernel_times else 0.0):
            return f"events were read {1000 * self.lag_p99_seconds:.1f} ms late (p99)"
        return ""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a load: raw records, and what the client says of itself (None where a tool does not tell)."""

    records: tuple[RequestRecord, ...]
    client: Client | None
    generator: str


class CannotGenerate(Exception):
    """A generator that cannot make this load, or is not there; the message names the remedy."""


class ClientTooSlow(CannotGenerate):
    """What was measured are the client's own figures: refused."""


class Generator(Protocol):
    """Sends a load to an endpoint."""

    async def run(self, endpoint: Endpoint, load: Load, ended: Callable[[RequestRecord], None]) -> Run:
        """Send all of it; `ended` hears of each request that ended. CannotGenerate before anything is sent."""
