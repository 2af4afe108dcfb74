"""Signal quality: the state of a service's signals, and a message that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from holdfast.api.quantities import counted, some_of
from holdfast.domain.service import ServiceKey, Slo
from holdfast.domain.signals import SignalState
from holdfast.observe.series import needed_series
from holdfast.observe.series.needed_series import Stored
from holdfast.observe.series.queries import QueryWindow
from holdfast.observe.signals import foreign_engines
from holdfast.observe.signals.counts import Counts


@dataclass(frozen=True, slots=True)
class SignalFacts:
    """Input of the checks, per service."""

    cells: Mapping[str, Counts]
    stored: Stored  # nothing while that is unknown
    slo: Slo
    exact: bool  # the plugins judge all requests
    there: frozenset[str]  # pods that the cluster has
    expected: Mapping[str, tuple[str, ...]]  # accelerator -> pods that should report by now
    foreign: tuple[str, ...]  # pods that report but do not belong to this cluster
    starting: bool
    unlabelled: str
    warnings: tuple[str, ...]
    span: QueryWindow
    now: float

    def newest(self) -> float | None:
        """Return when the newest sample was taken."""
        return max((at for values in self.cells.values() for at in values.sampled_at.values()), default=None)

    def reporting(self, accelerator: str) -> tuple[str, ...]:
        """Return the pods on this accelerator whose samples are fresh."""
        values = self.cells.get(accelerator)
        fresh_since = self.now - self.span.stale_seconds
        return tuple(pod for pod, at in values.sampled_at.items() if at >= fresh_since) if values else ()


def judge(facts: SignalFacts) -> tuple[SignalState, str]:
    """Return the worst state of the signals with a message; fresh signals have none."""
    return next(filter(None, (check(facts) for check in _CHECKS)), (SignalState.FRESH, ""))


def unlabelled_detail(key: ServiceKey, groups: Iterable[Mapping[str, str]]) -> str:
    """Name the label that is missing on engines of this namespace (or of no namespace)."""
    for labels in groups:
        if labels.get("namespace", "") not in ("", key.namespace):
            continue
        if labels.get("holdfast_service", "") not in ("", key.label):
            continue
        lacking = [name for name in ("namespace", "holdfast_service", "holdfast_accelerator") if not labels.get(name)]
        return (
            f"engines report vllm:num_requests_running without the label {' and '.join(lacking)}; add it by relabeling"
        )
    return ""


_Judgement = tuple[SignalState, str] | None


def _some_series(facts: SignalFacts) -> _Judgement:
    if facts.newest() is not None:
        return None
    if facts.unlabelled:
        return SignalState.ABSENT, facts.unlabelled
    if facts.starting:
        return SignalState.ABSENT, "no replica is ready yet"
    if not facts.expected:
        return SignalState.ABSENT, "the first replica became ready just now and was not scraped yet"
    return (
        SignalState.ABSENT,
        "Prometheus has no vllm:num_requests_running for this service; check that its pods are scraped",
    )


def _numbers_make_sense(facts: SignalFacts) -> _Judgement:
    unusable = sorted({name for values in facts.cells.values() for name in values.unusable})
    return (SignalState.INVALID, f"NaN, infinite or negative: {', '.join(unusable)}") if unusable else None


def _recent(facts: SignalFacts) -> _Judgement:
    newest = facts.newest()
    if newest is None or facts.now - newest <= facts.span.stale_seconds:
        return None
    age, period = facts.now - newest, facts.span.scrape_seconds
    return SignalState.STALE, f"the newest sample is {age:.0f} s old, the scrape interval is {period:g} s"


def _every_series(facts: SignalFacts) -> _Judgement:
    """Relabeling may drop series, and stores may convert histograms: what is missing is not zero."""
    missing = needed_series.missing(facts.stored, facts.slo, facts.exact)
    if not missing:
        return None
    names = ", ".join(f"vllm:{each.names[0]}" for each in missing)
    state = SignalState.INCOMPLETE if any(each.judges for each in missing) else SignalState.PARTIAL
    return state, f"Prometheus scrapes the engines but not all of them have {names}; check its relabeling"


def _labelled(facts: SignalFacts) -> _Judgement:
    if "" in facts.cells:
        return SignalState.PARTIAL, "some engines have no label holdfast_accelerator; add it by relabeling"
    if any("" in values.sampled_at for values in facts.cells.values()):
        return SignalState.PARTIAL, "some engines have no label pod; add it by relabeling"
    return None


def _every_engine(facts: SignalFacts) -> _Judgement:
    reporting = {name: frozenset(facts.reporting(name)) for name in facts.expected}
    missing = sorted(pod for name, pods in facts.expected.items() for pod in pods if pod not in reporting[name])
    if not missing:
        return None
    expected = sum(map(len, facts.expected.values()))
    silent = counted(len(missing), "ready replica", "reports", "report", of=expected)
    return SignalState.PARTIAL, f"{silent} no metrics: {some_of(missing)}"


def _once_each(facts: SignalFacts) -> _Judgement:
    if not any(values.copies for values in facts.cells.values()):
        return None
    return SignalState.DUPLICATE, "engines are scraped more than once; counts are divided by the number of copies"


def _only_ours(facts: SignalFacts) -> _Judgement:
    return (SignalState.FOREIGN, foreign_engines.told(facts.foreign)) if facts.foreign else None


def _whole_counts(facts: SignalFacts) -> _Judgement:
    """An engine that is gone will send no more samples: its gap is not waited for."""
    pods = sorted(facts.there.intersection(pod for values in facts.cells.values() for pod in values.incomplete))
    if not pods:
        return None
    return SignalState.PARTIAL, f"too few samples in this interval to count all requests of: {some_of(pods)}"


def _complete_answers(facts: SignalFacts) -> _Judgement:
    return (SignalState.PARTIAL, f"warning of Prometheus: {facts.warnings[0][:200]}") if facts.warnings else None


_CHECKS: tuple[Callable[[SignalFacts], _Judgement], ...] = (
    _some_series,
    _numbers_make_sense,
    _recent,
    _every_series,
    _once_each,
    _labelled,
    _every_engine,
    _only_ours,
    _whole_counts,
    _complete_answers,
)
