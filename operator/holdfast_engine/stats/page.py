"""The plugin's counters as a page: where the one of vLLM's front end cannot show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from holdfast_engine.stats import stats_fields
from holdfast_engine.stats.engine_info import CACHE_LABELS, Identity
from holdfast_engine.stats.metrics import EngineCollector

_CACHE = "vllm:cache_config_info"
_STARTED = "process_start_time_seconds"


class CountersPage:
    """Reads what the engines of this pod have written of themselves; `started_at`: when they were (epoch seconds)."""

    def __init__(self, started_at: float) -> None:
        self._said: tuple[dict[int, str], Path | None] = {}, None
        self._engines: dict[int, Identity] = {}
        self._collector: EngineCollector | None = None
        self._started = GaugeMetricFamily(_STARTED, "When the first process of the pod began.", value=started_at)

    def text(self, engines_page: str) -> str:
        """The families that the engine's own page lacks, in the format of that page, without its end."""
        said = {engine: path.read_text() for engine, path in sorted(stats_fields.identity_paths().items())}
        shared = stats_fields.servers_folder()
        if (said, shared) != self._said:
            self._engines = {engine: Identity.from_json(text) for engine, text in said.items()}
            # The engines of a pod share a configuration: what the first one says of it holds for all.
            paths = {engine: stats_fields.stats_path(engine) for engine in said}
            self._collector = EngineCollector(next(iter(self._engines.values())), paths, shared) if said else None
            self._said = said, shared
        families = self._collector.collect() if self._collector else ()
        ours = (family for family in (*families, self._started, self._cache()) if family.samples)
        openmetrics = engines_page.endswith("# EOF\n")
        lacked = (family for family in ours if family.name not in engines_page)
        return "".join(line for family in lacked for line in _lines(family, openmetrics=openmetrics))

    def _cache(self) -> Metric:
        labels = ("model_name", "engine", *CACHE_LABELS)
        family = GaugeMetricFamily(_CACHE, "The KV cache of each engine.", labels=labels)
        for engine, identity in self._engines.items():
            said = (identity.cache.get(name, "") for name in CACHE_LABELS)
            family.add_metric([identity.model_name, str(engine), *said], 1)
        return family


def _lines(family: Metric, *, openmetrics: bool) -> Iterator[str]:
    """One family; prometheus_client's own writer of OpenMetrics spells names with a colon in two ways."""
    name = family.name if openmetrics or family.type != "counter" else f"{family.name}_total"
    yield f"# HELP {name} {_escaped(family.documentation)}\n# TYPE {name} {family.type}\n"
    for sample in family.samples:
        number: str = floatToGoString(sample.value)  # type: ignore[no-untyped-call]
        yield f"{sample.name}{_labels(sample.labels)} {number}\n"


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(word)}"' for name, word in sorted(labels.items()))
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
