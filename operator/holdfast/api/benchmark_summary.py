"""What a benchmark hands to the operator: the termination message of its container, which holds 4 KiB at most.

Its content comes from the answers of an untrusted endpoint, so every field is bounded when it is read.
"""

import json
import math
from enum import StrEnum
from typing import Annotated, Literal, Self

import pydantic
from pydantic import ConfigDict, Field, StrictBool, StringConstraints

from holdfast.api.rules import ApiModel

MOST_BYTES = 4096
"""Kubernetes cuts a longer termination message."""

TRIAL_COLUMNS = (
    "rate_rps", "attainment", "goodput_rps", "output_tokens_per_second", "ttft_p99_seconds", "tpot_p99_seconds",
    "requests", "saturated",
)  # fmt: skip

TUNE_COLUMNS = (
    "max_num_seqs", "max_num_batched_tokens", "rate_rps", "attainment", "ttft_p50_seconds", "tpot_p50_seconds",
    "requests", "held",
)  # fmt: skip

MOST_TRIALS, MOST_WORDS = 64, 512

Figure = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False, strict=True)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=0, le=10**9, strict=True)]
Cause = Annotated[str, StringConstraints(pattern="^[a-z0-9_]{1,32}$")]
Words = Annotated[str, StringConstraints(max_length=MOST_WORDS)]
TrialRow = Annotated[tuple[Figure | None, ...], Field(min_length=len(TRIAL_COLUMNS), max_length=len(TRIAL_COLUMNS))]

Limit = Annotated[int, Field(ge=1, le=10**7, strict=True)]
TuneRow = Annotated[tuple[Figure | None, ...], Field(min_length=len(TUNE_COLUMNS), max_length=len(TUNE_COLUMNS))]


class Failed(StrEnum):
    """Why there is no result."""

    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    INVALID = "invalid"
    FAILED = "failed"


class _Part(ApiModel):
    model_config = ConfigDict(extra="ignore", alias_generator=None)


class Failure(_Part):
    """A run without a result."""

    why: Failed
    message: Words


class RunFigures(_Part):
    """One run, or one trial of a sweep; None where not known.

    `concurrency_*`: requests under way at once, weighed by time. `compute_bound`: whether FLOP/s bind before memory
    bandwidth. `tokens_per_dollar`: output tokens; the client does not know the price of what answers, the operator
    does.
    """

    attainment: Share | None = None
    requests: Count = 0
    arrival_rps: Figure | None = None
    request_rps: Figure | None = None
    goodput_rps: Figure | None = None
    output_tokens_per_second: Figure | None = None
    prompt_tokens: Figure | None = None
    output_tokens: Figure | None = None
    ttft_p50_seconds: Figure | None = None
    ttft_p95_seconds: Figure | None = None
    ttft_p99_seconds: Figure | None = None
    tpot_p50_seconds: Figure | None = None
    tpot_p95_seconds: Figure | None = None
    tpot_p99_seconds: Figure | None = None
    itl_p99_seconds: Figure | None = None
    e2e_p99_seconds: Figure | None = None
    concurrency_p50: Figure | None = None
    concurrency_p90: Figure | None = None
    concurrency_p99: Figure | None = None
    compute_bound: StrictBool | None = None
    tokens_per_dollar: Figure | None = None
    bad: Annotated[dict[Cause, Count], Field(max_length=24)] = Field(default_factory=dict)


class SweepFigures(_Part):
    """What a sweep brackets: `carried` to `saturates` is saturation, `attains` to `misses` the objective's border."""

    objective: Share
    carried_rps: Figure
    saturates_rps: Figure | None = None
    attains_rps: Figure
    misses_rps: Figure | None = None
    trials: Annotated[tuple[TrialRow, ...], Field(max_length=MOST_TRIALS)] = ()


class TuneFigures(_Part):
    """Limits that were found and the rate they carry, both None where no limits meet the objective.

    `missed_rps` is the lowest rate at which they missed it; `confirmed`: other requests kept it; `exhausted`: trials
    ran out first. Of so many that were `made`, the last are in `trials`. `note` says what would be possible,
    of limits that were found what ended the search early.
    """

    objective: Share
    max_num_seqs: Limit | None = None
    max_num_batched_tokens: Limit | None = None
    rate_rps: Figure | None = None
    missed_rps: Figure | None = None
    confirmed: bool = False
    exhausted: bool = False
    made: Count = 0
    note: Words = ""
    trials: Annotated[tuple[TuneRow, ...], Field(max_length=MOST_TRIALS)] = ()

    def shorter(self) -> Self:
        """The same in fewer words, with the last trials only."""
        return self.model_copy(update={"note": self.note[:100], "trials": self.trials[-16:]})


class Summary(_Part):
    """A result, or why there is none.

    In a sweep, `run` is the trial at the highest rate that attains the objective; of tuned limits, the last one.
    """

    version: Literal[1] = 1
    run: RunFigures | None = None
    sweep: SweepFigures | None = None
    tune: TuneFigures | None = None
    failure: Failure | None = None

    @classmethod
    def failed(cls, why: Failed, message: str) -> Self:
        """No result."""
        return cls(failure=Failure(why=why, message=message[:MOST_WORDS]))

    @classmethod
    def read(cls, text: str) -> Self | None:
        """What a container left; None where that is no summary."""
        if len(text.encode(errors="replace")) > MOST_BYTES:
            return None
        try:
            found = cls.model_validate(json.loads(text, parse_constant=_no_constant))
        except (ValueError, RecursionError, pydantic.ValidationError):
            return None
        return found if (found.run is None) != (found.failure is None) else None

    def to_json(self) -> str:
        """Text of at most `MOST_BYTES`: of what is too long, words go first, then trials."""
        text = self._text()
        if len(text.encode()) <= MOST_BYTES:
            return text
        shorter = self.model_copy(
            update={
                "run": self.run and self.run.model_copy(update={"bad": {}}),
                "sweep": self.sweep and self.sweep.model_copy(update={"trials": self.sweep.trials[:24]}),
                "tune": self.tune and self.tune.shorter(),
                "failure": self.failure and self.failure.model_copy(update={"message": self.failure.message[:100]}),
            }
        )
        return shorter._text()

    def _text(self) -> str:
        told = self.model_dump(mode="json", exclude_none=True, exclude_defaults=False)
        for name, part in (("sweep", self.sweep), ("tune", self.tune)):
            if part is not None:
                told[name]["trials"] = [list(row) for row in part.trials]
        return json.dumps(told, separators=(",", ":"), allow_nan=False)


def figure(value: float | None) -> float | None:
    """A number with four digits; None for NaN, infinite, negative and huge ones."""
    if value is None or not math.isfinite(value) or not 0.0 <= value <= 1e12:
        return None
    return float(f"{value:.4g}")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON's")
