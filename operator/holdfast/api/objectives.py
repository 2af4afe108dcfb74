"""What a good request is: the objectives that a service keeps and a benchmark judges by."""

from typing import ClassVar

from pydantic import Field

from holdfast.api import fields
from holdfast.api.quantities import parse_duration_seconds, parse_percent
from holdfast.api.rules import ApiModel, Rule, cel_seconds, is_duration

_E2E_ABOVE_TTFT = Rule(
    "!has(self.e2e) || type(self.e2e) != string || type(self.ttft) != string"
    f" || !{is_duration('self.e2e')} || !{is_duration('self.ttft')}"
    f" || {cel_seconds('self.e2e')} > {cel_seconds('self.ttft')}",
    "e2e must be longer than ttft: raise e2e, lower ttft, or remove e2e",
    lambda slo: slo.e2e is None or slo.e2e_seconds > slo.ttft_seconds,
    ".e2e",
)


class Objectives(ApiModel):
    """Objectives of a good request, and the share of requests that must be good."""

    rules: ClassVar[tuple[Rule, ...]] = (_E2E_ABOVE_TTFT,)

    ttft: fields.LatencyBound
    """Maximum time to first token of a good request, such as 500ms."""
    tpot: fields.LatencyBound
    """Maximum time per output token, mean over the request, of a good request, such as 30ms."""
    e2e: fields.LatencyBound | None = Field(default=None, alias="e2e")
    """Maximum end-to-end time of a good request; longer than ttft."""
    objective: fields.Objective = "99%"
    """Share of the requests that must meet all objectives; above 50% and below 100%."""

    @property
    def ttft_seconds(self) -> float:
        """The TTFT bound."""
        return parse_duration_seconds(self.ttft)

    @property
    def tpot_seconds(self) -> float:
        """The TPOT bound."""
        return parse_duration_seconds(self.tpot)

    @property
    def e2e_seconds(self) -> float | None:
        """The end-to-end bound, None where there is none."""
        return None if self.e2e is None else parse_duration_seconds(self.e2e)

    @property
    def objective_share(self) -> float:
        """The objective as a share: 0.99 for 99%."""
        return parse_percent(self.objective)
