"""Classes of requests: objectives of their own on the engines of one service."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictInt

from holdfast.api import fields
from holdfast.api.objectives import Objectives
from holdfast.api.quantities import parse_duration_seconds, parse_percent
from holdfast.api.rules import ApiModel, BrokenRule, Rule, cel_seconds, is_duration

MOST_SHARES = 0.5

_E2E_ABOVE_TTFT = Rule(
    f"!has(self.e2e) || !has(self.ttft) || !{is_duration('self.e2e')} || !{is_duration('self.ttft')}"
    f" || {cel_seconds('self.e2e')} > {cel_seconds('self.ttft')}",
    "e2e of a class must be longer than its ttft: raise e2e, lower ttft, or remove e2e",
    lambda each: not each.e2e or not each.ttft or parse_duration_seconds(each.e2e) > parse_duration_seconds(each.ttft),
    ".e2e",
)


class ClassTerms(ApiModel):
    """Objectives and priority of some of the requests. A bound that is left out is the service's."""

    rules: ClassVar[tuple[Rule, ...]] = (_E2E_ABOVE_TTFT,)

    ttft: fields.ClassBound | None = None
    """Maximum time to first token. Default: slo.ttft."""
    tpot: fields.ClassBound | None = None
    """Maximum time per output token. Default: slo.tpot."""
    e2e: fields.ClassBound | None = Field(default=None, alias="e2e")
    """Maximum end-to-end time. Default: slo.e2e."""
    objective: fields.ClassObjective | None = None
    """Share of the requests of this class that must be good; above 50% and below 100%. Default: slo.objective."""
    priority: Annotated[StrictInt, Field(ge=-1000, le=1000)] = 0
    """Waiting requests of a higher priority start first. Requests without a class have priority 0."""


def _not_batch(field: str, attribute: str, why: str) -> Rule:
    return Rule(
        f"!has(self.kind) || self.kind != 'Batch' || !has(self.{field})",
        f"{field} and kind Batch exclude each other, because {why}: remove {field}, or kind",
        lambda each: each.kind != "Batch" or getattr(each, attribute) is None,
        f".{field}",
    )


class RequestClass(ClassTerms):
    """Requests with objectives of their own. A bound that is left out is the service's."""

    rules = (
        *ClassTerms.rules,
        *(_not_batch(name, name, "nothing is too late for batch work") for name in ("ttft", "tpot", "e2e")),
        _not_batch("objective", "objective", "engines do not count which batch requests are done in time"),
        *(
            _not_batch(field, name, "batch work gets what other requests leave")
            for field, name in (("minShare", "min_share"), ("maxShare", "max_share"))
        ),
        Rule(
            "!has(self.finishWithin) || has(self.kind) && self.kind == 'Batch'",
            "finishWithin is for batch work only: set kind: Batch, or set e2e in place of finishWithin",
            lambda each: each.finish_within is None or each.kind == "Batch",
            ".finishWithin",
        ),
        Rule(
            "!has(self.maxShare) || !has(self.priority) || self.priority >= 0",
            "maxShare and a priority below 0 exclude each other, because requests beyond maxShare have priority 0: "
            "remove maxShare, or priority",
            lambda each: each.max_share is None or each.priority >= 0,
            ".maxShare",
        ),
    )

    name: fields.ClassName
    """Name that requests claim, such as premium."""
    kind: Literal["Interactive", "Batch"] = "Interactive"
    """Batch: runs in what all other requests leave, whatever their priority. Has no bounds, and asks for replicas only
    with finishWithin."""
    finish_within: fields.FinishTime | None = None
    """Time in which batch requests are to be done, from 1m to 7d: replicas are added where others leave too little for
    that. Default: no replicas are added."""
    min_share: fields.LeastShare | None = None
    """Part of the started prompt tokens that this class keeps while it waits behind higher priorities, at most 50% in
    all. Default: an equal part of 5%."""
    max_share: fields.MostShare | None = None
    """Part of the tokens of an engine over a minute that this class has at most. Requests beyond it count as those
    without a class. Default: no limit."""

    @property
    def finish_seconds(self) -> float | None:
        """Time in which batch requests are to be done; None asks for no replicas."""
        return None if self.finish_within is None else parse_duration_seconds(self.finish_within)


def require_bounds_that_fit(slo: Objectives, classes: Iterable[tuple[str, RequestClass]]) -> None:
    """Raise BrokenRule for the first class whose bounds exclude each other where one of them is the service's.

    Classes come with their paths. The operator alone checks it: whether the API server bears the cost of such a rule
    for 32 classes was not tried.
    """
    for path, each in classes:
        e2e, ttft = each.e2e or slo.e2e, each.ttft or slo.ttft
        if e2e and parse_duration_seconds(e2e) <= parse_duration_seconds(ttft):
            raise BrokenRule(
                f"e2e of class {each.name}, {e2e}, must be longer than its ttft, {ttft}: what a class leaves out is "
                "the service's own bound; set both in the class",
                f"{path}.{'e2e' if each.e2e else 'ttft'}",
            )


def require_caps_that_lift_nothing(slo: Objectives, classes: Iterable[tuple[str, RequestClass]]) -> None:
    """Raise BrokenRule for the first class with maxShare and a looser bound than the service's, which what is beyond
    would get. The operator alone checks it, as above."""
    for path, each in classes:
        for name in ("ttft", "tpot", "e2e"):
            bound, own = getattr(each, name), getattr(slo, name)
            is_looser = bound and own and parse_duration_seconds(bound) > parse_duration_seconds(own)
            if each.max_share is not None and is_looser:
                raise BrokenRule(
                    f"{name} of class {each.name}, {bound}, is longer than {own}, the service's, which requests beyond "
                    f"maxShare have: remove maxShare, or lower {name}",
                    f"{path}.{name}",
                )


def require_shares_that_fit(classes: Iterable[RequestClass]) -> None:
    """Raise BrokenRule where the classes keep so much that the highest priority has no half. The operator alone checks
    it, as above."""
    shares = [parse_percent(each.min_share) for each in classes if each.min_share is not None]
    if sum(shares) > MOST_SHARES + 1e-9:
        raise BrokenRule(
            f"minShare of all classes together is {100.0 * sum(shares):g}%, and may be {100.0 * MOST_SHARES:g}% at "
            "most, so that the highest priority has half of the engine: lower some of them",
            ".classes",
        )


SLO_RULES = (
    Rule(
        "!has(self.classes) || self.classes.all(a, self.classes.exists_one(b, b.name == a.name))",
        "classes must have distinct names: rename or remove the duplicate",
        lambda slo: len({each.name for each in slo.classes}) == len(slo.classes),
        ".classes",
    ),
    Rule(
        "!has(self.claim) || has(self.classes) && self.classes.size() > 0",
        "claim says how requests name their class, and there are no classes: add one to slo.classes, or remove claim",
        lambda slo: slo.claim is None or bool(slo.classes),
        ".claim",
    ),
    Rule(
        "!has(self.claim) || self.claim != 'Body' || !has(self.classes)"
        " || self.classes.all(each, !has(each.kind) || each.kind != 'Batch')",
        "claim Body and a class of kind Batch exclude each other, because the queue of batch work that only a body "
        "names has no bound at the door: remove claim, or kind",
        lambda slo: slo.claim != "Body" or all(each.kind != "Batch" for each in slo.classes),
        ".claim",
    ),
)


def _alone(other: str, cel: str, why: str, holds: Callable[[Any], bool]) -> Rule:
    """Classes without another field."""
    return Rule(
        f"!has(self.slo.classes) || self.slo.classes.size() == 0 || {cel}",
        f"slo.classes and {other} exclude each other, because {why}: remove slo.classes, or {other}",
        lambda spec: not spec.slo.classes or holds(spec),
        ".slo.classes",
    )


CLASS_RULES = (
    _alone(
        "target",
        "!has(self.target)",
        "only engines with Holdfast's plugin know classes",
        lambda spec: spec.target is None,
    ),
    _alone(
        "engine.plugin Disabled",
        "!has(self.engine) || !has(self.engine.plugin) || self.engine.plugin != 'Disabled'",
        "only engines with Holdfast's plugin know classes",
        lambda spec: spec.engine.plugin != "Disabled",
    ),
    _alone(
        "engine.frontEnd Rust",
        "!has(self.engine) || !has(self.engine.frontEnd) || self.engine.frontEnd != 'Rust'",
        "nothing of Holdfast sees the headers of requests there",
        lambda spec: not spec.engine.has_rust_front_end,
    ),
)
