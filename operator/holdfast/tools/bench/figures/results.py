"""One run in figures, for people and for machines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from holdfast.enginemodel.catalog import AcceleratorShape, ModelShape
from holdfast.enginemodel.phases import Phases, StepMix, measured_law, phases, roofs
from holdfast.enginemodel.roofline import roofline_law
from holdfast.tools.bench.figures import definitions, window
from holdfast.tools.bench.figures.definitions import Floats
from holdfast.tools.bench.figures.engine import Reported
from holdfast.tools.bench.figures.thresholds import Judged, Threshold, judged
from holdfast.tools.bench.figures.window import MeasurementWindow
from holdfast.tools.bench.load.load_generator import ClassShare, Client, LatencyBounds
from holdfast.tools.bench.load.records import RequestRecord

SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Spread:
    """How a figure is spread over requests (ITL: over gaps); NaN where there is none."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Floats) -> Spread:
        """Of the values that are numbers."""
        known = values[np.isfinite(values)]
        if not len(known):
            return cls(0, *[math.nan] * 6)
        shares = {name: definitions.percentile(known, share) for name, share in SHARES.items()}
        return cls(len(known), float(known.mean()), **shares, most=float(known.max()))

    @classmethod
    def over_time(cls, values: Floats, seconds: Floats) -> Spread:
        """Of values that each lasted so long; `count` is that of the values. A percentile is one of the values."""
        order = np.argsort(values)
        kept = order[seconds[order] > 0.0]
        if not len(kept):
            return cls(0, *[math.nan] * 6)
        known, passed = values[kept], np.cumsum(seconds[kept])
        at = {name: int(np.searchsorted(passed, share * passed[-1])) for name, share in SHARES.items()}
        shares = {name: float(known[min(place, len(known) - 1)]) for name, place in at.items()}
        mean = float(np.average(known, weights=seconds[kept]))
        return cls(len(known), mean, **shares, most=float(known[-1]))


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """Requests that claimed one class, or none: judged by its bounds."""

    slo: LatencyBounds
    requests: int
    verdicts: Mapping[str, int]
    attainment: float
    ttft: Spread
    tpot: Spread


@dataclass(frozen=True, slots=True)
class Results:
    """Every figure of a run; rates are per second of the window, attainment is over all its arrivals."""

    slo: LatencyBounds
    window: MeasurementWindow
    requests: int
    left_out: int
    verdicts: Mapping[str, int]
    outcomes: Mapping[str, int]
    statuses: Mapping[str, int]
    ttft: Spread
    itl: Spread
    tpot: Spread
    e2e: Spread
    user_tokens_per_second: Spread
    interactivity: Spread
    itl_inference_perf: Spread
    itl_llmperf: Spread
    request_rps: float
    goodput_rps: float
    output_tokens_per_second: float
    system_tokens_per_second: float
    total_tokens_per_second: float
    prompt_tokens: float
    output_tokens: float
    without_usage: int
    one_token: int
    shorter_than_asked: int
    peak_resident_tokens: float
    peak_in_flight: int
    under_way: Spread
    without_tokens: int = 0
    classes: Mapping[str, ClassFigures] = field(default_factory=dict)
    """By name, and under the empty one the requests without a class; nothing where no request claims any."""
    thresholds: tuple[Judged, ...] = ()
    errors: tuple[str, ...] = ()
    client: Client | None = None
    tokens_per_dollar: float = math.nan
    kv_model: ModelShape | None = None
    engine: Reported | None = None
    accelerator: AcceleratorShape | None = None

    @property
    def attainment(self) -> float:
        """Good requests / all that arrived in the window."""
        return definitions.attainment(self.verdicts)

    @property
    def is_unbounded(self) -> bool:
        """Whether nothing is asked of any request but an answer."""
        return self.slo.is_empty and all(each.slo.is_empty for each in self.classes.values())

    def attains(self, objective: float) -> bool:
        """Whether so many requests are good (without bounds to keep, whether any is), and every threshold passes."""
        good = self.verdicts.get(definitions.GOOD, 0) > 0 and (self.is_unbounded or self.attainment >= objective)
        return good and all(each.passed for each in self.thresholds)

    @property
    def kv_bytes_per_token(self) -> float:
        """By formula; NaN where the model's shape is not known."""
        return math.nan if self.kv_model is None else definitions.kv_bytes_per_token(self.kv_model)

    @property
    def compute_bound(self) -> bool | None:
        """Whether FLOP/s bind before memory bandwidth does; None where engine, accelerator or place are unknown."""
        if self.accelerator is None or self.engine is None or self.engine.work is None:
            return None
        position = roofs(self.engine.work, self.accelerator)
        return None if position is None else position.compute_bound

    @property
    def phases(self) -> Phases:
        """A step of each phase; nothing without the plugin's sums over steps, or with an unknown model."""
        engine, model = self.engine, self.kv_model
        if engine is None or engine.sums is None or model is None:
            return Phases(None, None)
        sums, gpus, law = engine.sums, max(1, engine.tensor_gpus), engine.law
        if law is None and self.accelerator is not None:
            law = measured_law(roofline_law(model, self.accelerator, gpus), sums)
        if law is None:
            return Phases(None, None)
        mix = StepMix.of(sums, self.prompt_tokens, engine.tokens_per_step)
        return phases(model, law, gpus, mix).of_stage(engine.stages)

    @property
    def arrival_rps(self) -> float:
        """Arrivals a second."""
        return _per_second(self.requests, self.window.seconds)


def measure(
    records: Sequence[RequestRecord],
    slo: LatencyBounds,
    warm_up: float | None = None,
    cool_down: float | None = None,
    dollars_per_hour: float | None = None,
    client: Client | None = None,
    thresholds: Sequence[Threshold] = (),
    classes: Sequence[ClassShare] = (),
) -> Results:
    """All figures of the requests that count; cuts are as of `window.choose`."""
    cut = window.choose(records, warm_up, cool_down)
    counted = cut.of(records)
    timed = definitions.timed(counted)
    bounds = {each.name: each.bounds for each in classes if each.bounds is not None}
    within = (-math.inf, math.inf) if cut.whole else (cut.begin, cut.end)
    output_rate = _per_second(definitions.tokens_within(records, *within), cut.seconds)
    finished = definitions.finished_within(records, *within)
    return Results(
        slo=slo,
        window=cut,
        requests=len(counted),
        left_out=len(records) - len(counted),
        verdicts=_commonest(definitions.verdicts(counted, slo, bounds)),
        outcomes=_commonest(Counter(str(record.outcome) for record in counted)),
        statuses=_commonest(Counter(str(each.http_status) for each in counted if each.http_status not in (None, 200))),
        **_spreads(timed),
        request_rps=_per_second(len(finished), cut.seconds),
        # Of the finished requests: counted by arrival, there could be more good requests than finished ones.
        goodput_rps=_per_second(definitions.verdicts(finished, slo, bounds)[definitions.GOOD], cut.seconds),
        output_tokens_per_second=output_rate,
        system_tokens_per_second=definitions.system_tokens_per_second(records),
        total_tokens_per_second=output_rate
        + _per_second(definitions.prompt_tokens_within(records, *within), cut.seconds),
        prompt_tokens=_mean([record.prompt_tokens for record in timed]),
        output_tokens=_mean([record.output_tokens for record in timed]),
        without_usage=sum(not record.counted for record in timed),
        one_token=sum(record.output_tokens == 1 for record in timed),
        shorter_than_asked=sum(record.output_tokens < record.asked_tokens for record in timed),
        peak_resident_tokens=definitions.peak_resident_tokens(records),
        peak_in_flight=_peak_in_flight(records),
        under_way=Spread.over_time(*definitions.requests_under_way(records, cut.begin, cut.end)),
        without_tokens=sum(record.output_tokens == 0 for record in timed),
        classes=_by_class(counted, slo, bounds, [each.name for each in classes]),
        thresholds=tuple(judged(threshold, counted) for threshold in thresholds),
        errors=_errors(counted),
        client=client,
        tokens_per_dollar=definitions.tokens_per_dollar(output_rate, dollars_per_hour or 0.0),
    )


def _spreads(timed: Sequence[RequestRecord]) -> dict[str, Any]:
    """How times and speeds of finished requests are spread, by the field of `Results`."""
    return {
        "ttft": Spread.of(_each(timed, definitions.ttft_seconds)),
        "itl": Spread.of(_gaps(timed, definitions.itl_seconds)),
        "tpot": Spread.of(_each(timed, definitions.tpot_seconds)),
        "e2e": Spread.of(_each(timed, definitions.e2e_seconds)),
        "user_tokens_per_second": Spread.of(_each(timed, definitions.user_tokens_per_second)),
        "interactivity": Spread.of(_each(timed, definitions.interactivity)),
        "itl_inference_perf": Spread.of(_gaps(timed, definitions.itl_inference_perf_seconds)),
        "itl_llmperf": Spread.of(_each(timed, definitions.itl_llmperf_seconds)),
    }


def _by_class(
    records: Sequence[RequestRecord], slo: LatencyBounds, bounds: Mapping[str, LatencyBounds], given: Sequence[str]
) -> dict[str, ClassFigures]:
    """In the order given, then classes of read records, and last the requests without a class."""
    found = {record.slo_class for record in records}
    names = dict.fromkeys((*given, *sorted(found - {""}), *found & {""}))
    if not set(names) - {""}:
        return {}
    members: dict[str, list[RequestRecord]] = {name: [] for name in names}
    for record in records:
        members[record.slo_class].append(record)
    return {name: _of_class(each, bounds.get(name, slo)) for name, each in members.items()}


def _of_class(records: Sequence[RequestRecord], slo: LatencyBounds) -> ClassFigures:
    verdicts, timed = definitions.verdicts(records, slo), definitions.timed(records)
    return ClassFigures(
        slo=slo,
        requests=len(records),
        verdicts=_commonest(verdicts),
        attainment=definitions.attainment(verdicts),
        ttft=Spread.of(_each(timed, definitions.ttft_seconds)),
        tpot=Spread.of(_each(timed, definitions.tpot_seconds)),
    )


def figures(results: Results) -> dict[str, Any]:
    """All figures as a mapping; NaN where not known."""
    told = asdict(results) | {
        "attainment": results.attainment,
        "arrival_rps": results.arrival_rps,
        "kv_cache_bytes_per_token": results.kv_bytes_per_token,
        "peak_kv_cache_bytes": results.peak_resident_tokens * results.kv_bytes_per_token,
    }
    told["window"]["seconds"] = results.window.seconds
    told["thresholds"] = [
        {"threshold": str(each.threshold), "value_seconds": each.seconds, "passed": each.passed}
        for each in results.thresholds
    ]
    told["compute_bound"] = results.compute_bound
    told["phases"] = _phases(results)
    for elsewhere in ("client", "kv_model", "accelerator"):
        del told[elsewhere]
    return told


def _phases(results: Results) -> dict[str, Any]:
    """A step of each phase, and its distance to the roofs of a known accelerator; null for what is not known."""
    found = {}
    for name, work in results.phases.by_name().items():
        position = None if work is None or results.accelerator is None else roofs(work, results.accelerator)
        found[name] = work and {**asdict(work), "roofs": position and asdict(position)}
    return found


def as_json(results: Results, title: str, generator: str, objective: float, refused: str) -> dict[str, Any]:
    """Everything, with null for what is not known; of a refused result nothing but why."""
    told = {
        "title": title,
        "generator": generator,
        "objective": objective,
        "attained": not refused and results.attains(objective),
        "refused": refused or None,
        "client": None if results.client is None else asdict(results.client),
        "results": None if refused else figures(results),
    }
    return without_nan(told)  # type: ignore[no-any-return]


def without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(value, dict):
        return {str(key): without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _commonest(counts: Counter[str]) -> dict[str, int]:
    """In that order, as a plain mapping."""
    return dict(counts.most_common())


def _each(records: Sequence[RequestRecord], figure: definitions.Figure) -> Floats:
    return np.array([figure(record) for record in records], np.float64)


def _gaps(records: Sequence[RequestRecord], gaps: Callable[[RequestRecord], Floats]) -> Floats:
    return np.concatenate([np.zeros(0), *map(gaps, records)])


def _per_second(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0.0 else math.nan


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _peak_in_flight(records: Sequence[RequestRecord]) -> int:
    sane = [record for record in records if math.isfinite(record.sent_at) and math.isfinite(record.ended_at)]
    changes = sorted([(record.sent_at, 1) for record in sane] + [(record.ended_at, -1) for record in sane])
    return int(max(np.cumsum([change for _, change in changes]), default=0))


def _errors(records: Sequence[RequestRecord], most: int = 5) -> tuple[str, ...]:
    """The commonest errors, with how often each."""
    told = Counter(record.error for record in records if record.error)
    return tuple(f"{count} x {error}" for error, count in told.most_common(most))
