"""What the fast loop decides, as pure functions of numbers: used inside vLLM, by the emulator and by the simulator.

Nothing here reads a clock, a file or vLLM. Times are seconds of one monotonic clock, lengths are tokens.
"""

from __future__ import annotations

import enum
import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast_engine.law import arithmetic
from holdfast_engine.law.arithmetic import Law

Choice = TypeVar("Choice", bound=enum.StrEnum)

RETRY_AFTER_SECONDS = (1, 60)
# So long OpenAI's client libraries wait before they hang up; who waits longer has mostly gone.
LONGEST_WAIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Objectives:
    """Bounds of one good request in seconds."""

    ttft_seconds: float
    tpot_seconds: float
    e2e_seconds: float | None = None


class Claim(enum.StrEnum):
    """What tells the class of a request: a header that the API server saw, `vllm_xargs` in the body, or nothing."""

    HEADER = "Header"
    BODY = "Body"
    NONE = "None"


class Kind(enum.StrEnum):
    """What somebody waits for: a first token, or nothing but the end of the work."""

    INTERACTIVE = "Interactive"
    BATCH = "Batch"


class Role(enum.StrEnum):
    """The part of a request that an engine serves: all of it, its prompt, or its answer behind a prefill engine."""

    WHOLE = "Whole"
    PREFILL = "Prefill"
    DECODE = "Decode"


UNBOUNDED = Objectives(math.inf, math.inf)
"""The bounds of Batch: nothing is too late."""


@dataclass(frozen=True, slots=True)
class RequestClass:
    """Requests with bounds of their own. Waiting requests of a higher priority start first, Batch after all others.

    `min_share` is the part of the started prompt tokens that they get while they wait behind higher priorities; None
    for an equal part of order.LOWER_SHARE. What is beyond `max_share` of a minute's tokens has the service's own class.
    The class of a LoRA `adapter` has its name: requests for the adapter have it, and no request can claim it.
    """

    name: str
    objectives: Objectives
    priority: int = 0
    kind: Kind = Kind.INTERACTIVE
    min_share: float | None = None
    adapter: bool = False
    max_share: float | None = None

    @property
    def is_batch(self) -> bool:
        """Whether it runs only in what the others leave."""
        return self.kind is Kind.BATCH


MOST_CLASSES = 32
"""With the service's own one, 33 values of a label."""
SERVICE_CLASS = ""
"""The class of requests that name none: the objectives of the service, priority 0."""
_CLASS_NAME = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def is_class_name(name: object) -> bool:
    """Whether a class may have this name: a DNS label."""
    return isinstance(name, str) and _CLASS_NAME.fullmatch(name) is not None


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
    classes: tuple[RequestClass, ...] = ()
    claim: Claim = Claim.HEADER
    role: Role = Role.WHOLE
    by_name: Mapping[str, RequestClass] = field(init=False, repr=False, compare=False)
    """All classes, and the service's own under the name that a request without a class has."""
    claimable: tuple[RequestClass, ...] = field(init=False, repr=False, compare=False)
    """The classes that a new request may have: with claim None the service's own and those of adapters."""
    tightest: Objectives = field(init=False, repr=False, compare=False)
    """The lowest TTFT and the lowest TPOT of these."""
    has_max_shares: bool = field(init=False, repr=False, compare=False)
    """Whether a class may have a share of the tokens at most."""
    longest_wait_seconds: float = field(init=False, repr=False, compare=False)
    """After that a request without a first token is ended: never while it could be in time; batch requests are not."""

    def __post_init__(self) -> None:
        own = RequestClass(SERVICE_CLASS, self.objectives)
        object.__setattr__(self, "by_name", {each.name: each for each in (own, *self.classes)})
        found = (each for each in self.classes if each.adapter or self.claim is not Claim.NONE)
        object.__setattr__(self, "claimable", (own, *found))
        bounds = [each.objectives for each in self.claimable]
        ttft_seconds, tpot_seconds = (
            min(each.ttft_seconds for each in bounds),
            min(each.tpot_seconds for each in bounds),
        )
        object.__setattr__(self, "tightest", Objectives(ttft_seconds, tpot_seconds))
        object.__setattr__(self, "has_max_shares", any(each.max_share is not None for each in self.claimable))
        late_after = max(each.objectives.ttft_seconds for each in self.claimable if not each.is_batch)
        longest_wait = max(self.max_queued_seconds or LONGEST_WAIT_SECONDS, late_after)
        object.__setattr__(self, "longest_wait_seconds", longest_wait)

    def may_claim(self, each: RequestClass) -> bool:
        """Whether a header may claim this class; without a header a request has the service's own."""
        return each.name == SERVICE_CLASS or (self.claim is not Claim.NONE and not each.adapter)

    def to_json(self) -> str:
        """The text `parse_limits` reads; what is None is left out."""
        prior = self.prior
        found = {
            "version": self.version,
            **_bounds_json(self.objectives),
            "activeSequences": self.active_sequences,
            "tokensPerStep": self.tokens_per_step,
            "adapt": self.adapt,
            "overload": self.overload.value,
            "maxQueuedRequests": self.max_queued_requests,
            "maxQueuedSeconds": self.max_queued_seconds,
            "stepLaw": None if prior is None else [prior.c0, prior.c1, prior.c2, prior.c3, prior.c4],
            "role": None if self.role is Role.WHOLE else self.role.value,
        }
        if self.classes:
            found |= {"claim": self.claim.value, "classes": [self._class_json(each) for each in self.classes]}
        return json.dumps({name: value for name, value in found.items() if value is not None}, separators=(",", ":"))

    def _class_json(self, each: RequestClass) -> dict[str, Any]:
        # A plugin from before Batch refuses a class without bounds, and with it all limits: it gets the service's own.
        bounds = self.objectives if each.is_batch else each.objectives
        found = {"name": each.name, **_bounds_json(bounds), "priority": each.priority}
        if each.is_batch:
            found["kind"] = each.kind.value
        if each.adapter:
            found["adapter"] = True
        shares = {"minShare": each.min_share, "maxShare": each.max_share}
        return found | {name: share for name, share in shares.items() if share is not None}


def _bounds_json(bounds: Objectives) -> dict[str, Any]:
    named = {"ttftSeconds": bounds.ttft_seconds, "tpotSeconds": bounds.tpot_seconds, "e2eSeconds": bounds.e2e_seconds}
    return {name: value for name, value in named.items() if value is not None}


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
        objectives=_objectives(found),
        active_sequences=_whole(found, "activeSequences").value,
        tokens_per_step=_whole(found, "tokensPerStep").value,
        adapt=_flag(found, "adapt", default=True),
        overload=_choice(found, "overload", Overload, Overload.QUEUE),
        max_queued_requests=_whole(found, "maxQueuedRequests").value,
        max_queued_seconds=_positive(found, "maxQueuedSeconds").value,
        prior=_law(found),
        classes=_classes(found),
        claim=_choice(found, "claim", Claim, Claim.HEADER),
        role=_choice(found, "role", Role, Role.WHOLE),
    )


class Ending(enum.Enum):
    """How a request left the engine."""

    FINISHED = "finished"
    HANDED_OVER = "handed over"
    ABORTED = "aborted"
    FAILED = "failed"


class RequestVerdict(enum.StrEnum):
    """What a request counts as; everything behind HANDED_OVER is the cause of a bad one."""

    GOOD = "good"
    WITHDRAWN = "withdrawn"
    HANDED_OVER = "handed over"
    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"
    ERROR = "error"


_VERDICTS = (RequestVerdict.GOOD, RequestVerdict.TTFT, RequestVerdict.TPOT, RequestVerdict.E2E)


def judge(
    objectives: Objectives,
    ending: Ending,
    *,
    ttft_seconds: float | None,
    e2e_seconds: float,
    output_tokens: int,
) -> RequestVerdict:
    """Judge a request that has ended; `ttft_seconds` is None where no token came. NaN is never good.

    A request that its client aborts is judged by what it got so far, and not at all when it was aborted in time before
    its first token. The engine that goes on with a request judges it.
    """
    if ending is Ending.HANDED_OVER:
        return RequestVerdict.HANDED_OVER
    if ending is Ending.FAILED:
        return RequestVerdict.ERROR
    waited = e2e_seconds if ttft_seconds is None else ttft_seconds
    if ttft_seconds is None and ending is Ending.ABORTED and waited <= objectives.ttft_seconds:
        return RequestVerdict.WITHDRAWN
    e2e_bound = math.inf if objectives.e2e_seconds is None else objectives.e2e_seconds
    bounds = objectives.ttft_seconds, objectives.tpot_seconds, e2e_bound
    return _VERDICTS[arithmetic.breach(*bounds, waited, e2e_seconds, output_tokens)]


def shares(limits: Limits) -> dict[int, float]:
    """The part of the started prompt tokens that each priority keeps behind others, where its classes say so."""
    found: dict[int, float] = {}
    for each in limits.claimable:
        if each.min_share is not None and not each.is_batch:
            found[each.priority] = found.get(each.priority, 0.0) + each.min_share
    return found


def most_queued_requests(limits: Limits, peak_tps: float, tokens_per_prompt: float) -> float:
    """How many requests may wait: as asked, else as many as could start within the longest wait.

    `peak_tps` is the rate of an engine that computes prompts and nothing else: a request behind so many others is
    ended before its turn in any case. Infinite while the rate is not known.
    """
    if limits.max_queued_requests is not None:
        return limits.max_queued_requests
    return arithmetic.most_in_time(limits.longest_wait_seconds, peak_tps, tokens_per_prompt)


class RejectionReason(enum.Enum):
    """Why a request is turned away at the door."""

    FULL = "full"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms requests are taken; `most_queued` is infinite where any number may wait.

    The API server is behind where a request waits longer than `behind_seconds` to be read.
    """

    ttft_seconds: float
    overload: Overload
    most_queued: float = math.inf
    behind_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits before a new request, and how fast the engine works it off.

    `prompt_tokens` are those of waiting requests that can still be in time. `room_tokens` find a free sequence at once
    and are computed at `burst_tps`; the others at `prefill_tps`, the rate of an engine that is full. A rate that is not
    known is NaN.
    """

    requests: float
    prompt_tokens: float
    prefill_tps: float
    step_seconds: float
    room_tokens: float = 0.0
    burst_tps: float = math.nan

    def first_token_seconds(self, prompt_tokens: float) -> float:
        """Predicted TTFT of a request that comes now; NaN where the engine's rate is not known."""
        tokens = max(self.prompt_tokens, 0.0) + max(prompt_tokens, 0.0)
        return arithmetic.expected_seconds(
            tokens, self.room_tokens, self.burst_tps, self.prefill_tps, self.step_seconds
        )


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a request is taken, and if not, why and after how many seconds it should come again.

    One that is taken and `waits` is read when the API server has nothing better to do.
    """

    refused: RejectionReason | None = None
    retry_after_seconds: int = 0
    waits: bool = False

    @property
    def admitted(self) -> bool:
        """Whether it is taken."""
        return self.refused is None


def admission(terms: Terms, backlog: Backlog, prompt_tokens: float, waited_seconds: float = 0.0) -> Admission:
    """Take a request unless too many wait, or with `overload: Reject` its first token would be late behind others.

    It has waited so long to be read. With `overload: Queue` a late one waits on where the API server is behind. What
    could not be in time even alone is taken where nothing waits and the API server keeps up: it harms nobody there, and
    it can never do better. Without a known rate nobody is refused for being late.
    """
    if backlog.requests >= terms.most_queued:
        return Admission(RejectionReason.FULL, retry_after_seconds(terms, backlog, prompt_tokens))
    is_late = backlog.first_token_seconds(prompt_tokens) > terms.ttft_seconds - waited_seconds
    is_behind = waited_seconds > terms.behind_seconds
    if terms.overload is Overload.QUEUE:
        return Admission(waits=is_late and is_behind)
    if is_late and (is_behind or backlog.prompt_tokens > 0.0):
        return Admission(RejectionReason.LATE, retry_after_seconds(terms, backlog, prompt_tokens))
    return Admission()


def retry_after_seconds(terms: Terms, backlog: Backlog, prompt_tokens: float) -> int:
    """Whole seconds until a request that comes again meets its deadline, as far as what waits now decides on it."""
    least, most = RETRY_AFTER_SECONDS
    excess = backlog.first_token_seconds(prompt_tokens) - terms.ttft_seconds
    return math.ceil(min(max(excess, least), most)) if excess > least else least


def is_overloaded(terms: Terms, backlog: Backlog, late_requests: float) -> bool:
    """Whether clients may do better elsewhere: some wait that are late already, or the next one would be."""
    return late_requests > 0.0 or backlog.first_token_seconds(0.0) > terms.ttft_seconds


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
    if not 0.0 < value <= sys.float_info.max:
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


def _choice(found: dict[str, Any], name: str, choices: type[Choice], default: Choice) -> Choice:
    try:
        return choices(found.get(name, default.value))
    except ValueError:
        raise LimitsError(f"{name} must be one of {', '.join(each.value for each in choices)}") from None


def _objectives(found: dict[str, Any]) -> Objectives:
    return Objectives(
        ttft_seconds=_required(_positive(found, "ttftSeconds")),
        tpot_seconds=_required(_positive(found, "tpotSeconds")),
        e2e_seconds=_positive(found, "e2eSeconds").value,
    )


def _classes(found: dict[str, Any]) -> tuple[RequestClass, ...]:
    values = found.get("classes", [])
    if not isinstance(values, list) or len(values) > MOST_CLASSES:
        raise LimitsError(f"classes must be a list of at most {MOST_CLASSES}")
    classes = tuple(map(_class, values))
    if len({each.name for each in classes}) < len(classes):
        raise LimitsError("classes must have names of their own")
    return classes


def _class(value: Any) -> RequestClass:
    if not isinstance(value, dict) or not is_class_name(value.get("name")):
        raise LimitsError("each of classes must have a DNS label as its name")
    priority = value.get("priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise LimitsError("priority of a class must be a whole number")
    kind = _choice(value, "kind", Kind, Kind.INTERACTIVE)
    bounds = UNBOUNDED if kind is Kind.BATCH else _objectives(value)
    adapter, shares = _flag(value, "adapter", default=False), (_share(value, "minShare"), _share(value, "maxShare"))
    return RequestClass(value["name"], bounds, priority, kind, shares[0], adapter, shares[1])


def _share(found: dict[str, Any], name: str) -> float | None:
    value = found.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise LimitsError(f"{name} of a class must be a number from 0 to 1")
    return float(value)


def _law(found: dict[str, Any]) -> Law | None:
    values = found.get("stepLaw")
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != 5:
        raise LimitsError("stepLaw must be five numbers")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= sys.float_info.max:
            raise LimitsError("stepLaw must be five finite numbers >= 0")
    return Law(*map(float, values))
