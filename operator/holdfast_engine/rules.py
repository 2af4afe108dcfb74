"""What the fast loop decides, as pure functions of numbers: used inside vLLM, by the emulator and by the simulator.

Nothing here reads a clock, a file or vLLM. Times are seconds of one monotonic clock, lengths are tokens.
"""

from __future__ import annotations

import enum
import json
import math
from dataclasses import dataclass
from typing import Any

# Tokens come in uneven steps: what is planned for must stay a little below what was promised.
TPOT_MARGIN = 0.9
# Prefill never stops, however slow the decoding sequences are.
LEAST_PREFILL_TOKENS = 64
# While some sequences decode, the next ones compute their prompts.
PREFILLING_SEQUENCES = 2
RETRY_AFTER_SECONDS = (1, 60)


@dataclass(frozen=True, slots=True)
class Objectives:
    """Bounds of one good request in seconds."""

    ttft_seconds: float
    tpot_seconds: float
    e2e_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Law:
    """Seconds of one engine step: c0 + c1 prefill + c2 decodes + c3 kv + c4 pairs; every coefficient >= 0.

    `prefill` prompt tokens computed, `decodes` decoding sequences, `kv` tokens in their KV caches, `pairs` the sum of
    chunk x (tokens before it + chunk / 2) over the prompt chunks.
    """

    c0: float
    c1: float
    c2: float
    c3: float
    c4: float

    def seconds(self, prefill: float, decodes: float, kv: float, pairs: float) -> float:
        """How long such a step takes."""
        return self.c0 + self.c1 * prefill + self.c2 * decodes + self.c3 * kv + self.c4 * pairs


@dataclass(frozen=True, slots=True)
class Mix:
    """What steps were made of lately: ratios of their sums."""

    prefill_per_decode: float
    kv_per_decode: float
    pairs_per_prefill: float


class Overload(enum.StrEnum):
    """What happens to requests beyond capacity."""

    QUEUE = "Queue"
    REJECT = "Reject"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator asks of one engine; the highest version wins.

    `active_sequences` and `tokens_per_step` are upper bounds, None where there is none. With `adapt` the engine goes
    below them as its own step law says; without, they are used as they are. `prior` stands in for the step law until
    the engine has measured its own.
    """

    version: int
    objectives: Objectives
    active_sequences: int | None = None
    tokens_per_step: int | None = None
    adapt: bool = True
    overload: Overload = Overload.QUEUE
    max_queued_requests: int | None = None
    max_queued_seconds: float | None = None
    prior: Law | None = None

    def to_json(self) -> str:
        """The text `parse_limits` reads; what is None is left out."""
        bounds = self.objectives
        prior = self.prior
        found = {
            "version": self.version,
            "ttftSeconds": bounds.ttft_seconds,
            "tpotSeconds": bounds.tpot_seconds,
            "e2eSeconds": bounds.e2e_seconds,
            "activeSequences": self.active_sequences,
            "tokensPerStep": self.tokens_per_step,
            "adapt": self.adapt,
            "overload": self.overload.value,
            "maxQueuedRequests": self.max_queued_requests,
            "maxQueuedSeconds": self.max_queued_seconds,
            "stepLaw": None if prior is None else [prior.c0, prior.c1, prior.c2, prior.c3, prior.c4],
        }
        return json.dumps({name: value for name, value in found.items() if value is not None}, separators=(",", ":"))


class LimitsError(ValueError):
    """Limits that cannot be used; the message names the field."""


def parse_limits(text: str) -> Limits:
    """Read limits from JSON; LimitsError for anything but a complete, finite, positive set. Other keys are ignored."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LimitsError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise LimitsError("not a JSON object")
    return Limits(
        version=_required(_whole(found, "version")),
        objectives=Objectives(
            ttft_seconds=_required(_positive(found, "ttftSeconds")),
            tpot_seconds=_required(_positive(found, "tpotSeconds")),
            e2e_seconds=_positive(found, "e2eSeconds").value,
        ),
        active_sequences=_whole(found, "activeSequences").value,
        tokens_per_step=_whole(found, "tokensPerStep").value,
        adapt=_flag(found, "adapt", default=True),
        overload=_overload(found),
        max_queued_requests=_whole(found, "maxQueuedRequests").value,
        max_queued_seconds=_positive(found, "maxQueuedSeconds").value,
        prior=_law(found),
    )


class Ending(enum.Enum):
    """How a request left the engine."""

    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


class Verdict(enum.StrEnum):
    """What a request counts as; everything but GOOD and WITHDRAWN is the cause of a bad one."""

    GOOD = "good"
    WITHDRAWN = "withdrawn"
    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"
    ERROR = "error"


def judge(
    objectives: Objectives,
    ending: Ending,
    *,
    ttft_seconds: float | None,
    e2e_seconds: float,
    output_tokens: int,
) -> Verdict:
    """Judge a request that has ended; `ttft_seconds` is None where no token came. NaN is never good.

    A request that its client aborts is judged by what it got so far, and not at all when it was aborted in time before
    its first token.
    """
    if ending is Ending.FAILED:
        return Verdict.ERROR
    waited = e2e_seconds if ttft_seconds is None else ttft_seconds
    if not waited <= objectives.ttft_seconds:
        return Verdict.TTFT
    if ttft_seconds is None and ending is Ending.ABORTED:
        return Verdict.WITHDRAWN
    tpot_seconds = (e2e_seconds - waited) / (output_tokens - 1) if output_tokens > 1 else 0.0
    if not tpot_seconds <= objectives.tpot_seconds:
        return Verdict.TPOT
    if objectives.e2e_seconds is not None and not e2e_seconds <= objectives.e2e_seconds:
        return Verdict.E2E
    return Verdict.GOOD


def tokens_per_step(
    law: Law,
    tpot_seconds: float,
    *,
    decodes: int,
    kv_tokens: float,
    pairs_per_prefill: float,
    most: int,
    spare_seconds: float = 0.0,
) -> int:
    """Tokens of the next step, decodes included: the largest prefill that keeps the decoding sequences within TPOT.

    The step may take `spare_seconds` longer than the objective: so far are they all ahead of it.
    Up to `most` where nothing decodes and nobody waits for the step, and where not even one sequence could keep the
    objective: then the step may at least be efficient.
    """
    if decodes <= 0 or decodes >= most:
        return most
    planned = TPOT_MARGIN * tpot_seconds
    if law.seconds(0.0, 1.0, kv_tokens / decodes, 0.0) > planned:
        return most
    room = planned + TPOT_MARGIN * spare_seconds - law.seconds(0.0, decodes, kv_tokens, 0.0)
    prefill = _ratio(room, law.c1 + law.c4 * pairs_per_prefill)
    return decodes + int(min(max(prefill, LEAST_PREFILL_TOKENS), most - decodes))


def active_sequences(law: Law, tpot_seconds: float, mix: Mix, most: int) -> int:
    """Sequences, 1 to `most`: those that decode in steps as long as the TPOT objective when each brings its share of
    prefill with it, and a few that compute their prompts. `most` where not even one sequence could keep the objective.
    """
    room = TPOT_MARGIN * tpot_seconds - law.c0
    decode_seconds = law.c2 + law.c3 * mix.kv_per_decode
    if room < decode_seconds:
        return most
    each = decode_seconds + (law.c1 + law.c4 * mix.pairs_per_prefill) * mix.prefill_per_decode
    return int(min(_ratio(room, each) + PREFILLING_SEQUENCES, most))


def first_token_seconds(prompt_tokens: float, prefill_tokens: float, step_seconds: float) -> float:
    """Seconds until the first token of a request that starts now: the step under way, and those with its chunks."""
    return step_seconds * (1.0 + max(1.0, _ratio(prompt_tokens, prefill_tokens)))


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a request is taken, and after how many seconds it should come again if not."""

    admitted: bool
    retry_after_seconds: int = 0


def admission(
    ttft_seconds: float, *, queued_tokens: float, prompt_tokens: float, prefill_tps: float, step_seconds: float
) -> Admission:
    """Test for `overload: Reject`: refuse a request that would get its first token too late behind those before it.

    `queued_tokens` are prompt tokens of waiting requests that can still be in time. Without a known prefill rate
    nobody is refused.
    """
    if not prefill_tps > 0.0 or not math.isfinite(prefill_tps):
        return Admission(True)
    expected = step_seconds + (max(queued_tokens, 0.0) + prompt_tokens) / prefill_tps
    if not expected > ttft_seconds:
        return Admission(True)
    least, most = RETRY_AFTER_SECONDS
    return Admission(False, int(min(max(math.ceil(min(expected - ttft_seconds, most)), least), most)))


def _ratio(amount: float, each: float) -> float:
    """How often `each` fits into `amount`: infinity for what costs nothing, 0 for no room."""
    if amount <= 0.0:
        return 0.0
    return amount / each if each > 0.0 else math.inf


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    value: Any


def _required(field: _Field) -> Any:
    if field.value is None:
        raise LimitsError(f"{field.name} is missing")
    return field.value


def _positive(found: dict[str, Any], name: str) -> _Field:
    value = found.get(name)
    if value is None:
        return _Field(name, None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise LimitsError(f"{name} is not a number")
    if not 0.0 < value < math.inf:
        raise LimitsError(f"{name} must be positive and finite")
    return _Field(name, float(value))


def _whole(found: dict[str, Any], name: str) -> _Field:
    value = found.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**53):
        raise LimitsError(f"{name} must be a whole number above 0")
    return _Field(name, value)


def _flag(found: dict[str, Any], name: str, *, default: bool) -> bool:
    value = found.get(name, default)
    if not isinstance(value, bool):
        raise LimitsError(f"{name} must be true or false")
    return value


def _overload(found: dict[str, Any]) -> Overload:
    try:
        return Overload(found.get("overload", Overload.QUEUE.value))
    except ValueError:
        raise LimitsError("overload must be Queue or Reject") from None


def _law(found: dict[str, Any]) -> Law | None:
    values = found.get("stepLaw")
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != 5:
        raise LimitsError("stepLaw must be five numbers")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
            raise LimitsError("stepLaw must be five finite numbers >= 0")
    return Law(*map(float, values))
