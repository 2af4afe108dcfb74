"""Which requests are admitted, and which had better go elsewhere: the rules, applied to the scheduler's last record."""

from __future__ import annotations

import contextvars
import itertools
import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast_engine.apiserver.routes import GENERATING
from holdfast_engine.law.arithmetic import MEAN_COUNT
from holdfast_engine.objectives import rules
from holdfast_engine.objectives.rules import Admission, Backlog, Overload, RejectionReason, Role, Terms
from holdfast_engine.stats.stats_fields import RECORD_SECONDS, ROLES, Mode

GUARDED = frozenset(GENERATING)
"""The paths at which requests are turned away or sent elsewhere."""

CAPS = {RejectionReason.FULL: "max_num_queued_reqs", RejectionReason.LATE: "max_num_queued_tokens"}
"""vLLM's own cap that is nearest in kind: under its name vLLM counts a refusal."""

BEHIND_SHARE = 0.25
"""The API server is behind where a request waits longer than this share of TTFT to be read."""

Numbers = Mapping[str, float]
"""A record by the names of record.FIELDS."""


def terms_of(numbers: Numbers) -> Terms | None:
    """The terms in force in an engine, None where the plugin does nothing."""
    if numbers["mode"] != Mode.ACTIVE:
        return None
    overload = Overload.REJECT if numbers["limit_reject"] > 0.0 else Overload.QUEUE
    most = numbers["limit_max_queued_requests"]
    most = math.inf if math.isnan(most) else most
    # The rest of TTFT is for the front end and the step that was launched ahead.
    ttft_seconds = numbers["limit_ttft_seconds"] - numbers["front_end_lag"] - numbers["under_way_seconds"]
    if numbers["limit_role"] == ROLES[Role.DECODE]:
        # Who is turned away may keep blocks in a prefill engine until the lease ends: only when the queue is full.
        return Terms(ttft_seconds, Overload.QUEUE, most)
    behind_seconds = BEHIND_SHARE * numbers["limit_ttft_seconds"]
    return Terms(ttft_seconds, overload, most, behind_seconds)


def backlog_of(numbers: Numbers, more_requests: int = 0, more_tokens: float = 0.0) -> Backlog:
    """What waits in an engine, and what is on its way there."""
    share = numbers["computed_share"]
    return Backlog(
        requests=sum(numbers[f"waiting_{lane}"] for lane in ("front", "fresh", "late")) + more_requests,
        prompt_tokens=(numbers["waiting_fresh_tokens"] + more_tokens) * share,
        prefill_tps=numbers["prefill_tps"],
        step_seconds=numbers["step_seconds"],
        room_tokens=numbers["room_tokens"],
        burst_tps=numbers["burst_tps"],
    )


def decide(
    numbers: Numbers,
    prompt_tokens: float,
    more_requests: int = 0,
    more_tokens: float = 0.0,
    waited_seconds: float = 0.0,
) -> Admission:
    """Whether an engine with this record takes a request of this length that has waited so long to be read."""
    terms = terms_of(numbers)
    if terms is None:
        return Admission()
    backlog = backlog_of(numbers, more_requests, more_tokens)
    return rules.admission(terms, backlog, prompt_tokens * numbers["computed_share"], waited_seconds)


def is_behind(numbers: Numbers, waited_seconds: float) -> bool:
    """Whether a request that waited so long to be read shows an API server that does not keep up."""
    return waited_seconds > BEHIND_SHARE * numbers["limit_ttft_seconds"]


def sends_away(numbers: Numbers) -> bool:
    """Whether an engine with this record ends connections, so that their clients meet other replicas with the next
    request: kube-proxy balances connections, and a kept connection never meets a new replica."""
    terms = terms_of(numbers)
    return terms is not None and rules.is_overloaded(terms, backlog_of(numbers), numbers["waiting_late"])


@dataclass(slots=True)
class Prompts:
    """The prompts in one body: bytes that came, and the tokens that vLLM made of them, 0 where it made none."""

    size_bytes: int = 0
    tokens: int = 0


PROMPTS: contextvars.ContextVar[Prompts | None] = contextvars.ContextVar("holdfast_prompts", default=None)
"""Those of the request that this task works for."""


class PromptLengthEstimator:
    """Guesses prompt tokens from the bytes of a request, by the median tokens per byte of about the last 64.

    Only a request that vLLM has taken in as tokens teaches anything. A body may hold much more than its prompt:
    the median stays among the values of honest clients while they send half of the requests.
    """

    def __init__(self) -> None:
        self._found: deque[float] = deque(maxlen=MEAN_COUNT)
        self._tokens_per_byte = math.nan

    def learn(self, prompts: Prompts) -> None:
        """A request was served, or refused by vLLM."""
        if prompts.tokens > 0 and prompts.size_bytes > 0:
            self._found.append(prompts.tokens / prompts.size_bytes)
            self._tokens_per_byte = statistics.median(self._found)

    def tokens(self, size_bytes: int, mean_prompt_tokens: float, most: float = math.inf) -> float:
        """Tokens of a request of this size, `most` at the highest; the mean before any is known, 0 without one."""
        known = not math.isnan(self._tokens_per_byte)
        expected = min(self._tokens_per_byte * size_bytes if known else mean_prompt_tokens, most)
        return expected if 0.0 < expected < math.inf else 0.0


class Transit:
    """Admitted requests without an answer yet, which may be missing in the record."""

    def __init__(self) -> None:
        self.sent: dict[int, tuple[float, float]] = {}

    def add(self, name: int, now: float, tokens: float) -> None:
        """One was let in."""
        self.sent[name] = (now, tokens)

    def remove(self, name: int) -> None:
        """It has its answer, or its client has gone: it is on its way no longer, whatever the record says."""
        self.sent.pop(name, None)

    def since(self, now: float, step_seconds: float) -> tuple[int, float]:
        """Requests and tokens of the last step and the time between two records: a step tells of what it found."""
        horizon = now - RECORD_SECONDS - (step_seconds if step_seconds > 0.0 else 0.0)
        newest_first = reversed(self.sent.values())
        found = [tokens for _, tokens in itertools.takewhile(lambda sent: sent[0] >= horizon, newest_first)]
        return len(found), sum(found)
