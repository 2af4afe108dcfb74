"""A target with vLLM's Rust front end and without the plugin: its recorded page has what sizes are made from.

The page is that of vLLM 0.32.0 after one request, without the families that nobody asks for.
"""

import re
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from holdfast.domain.service import Slo
from holdfast.observe.series import queries
from holdfast.observe.series.needed_series import NEEDED, missing
from holdfast.observe.series.queries import Edges, window

PAGE = (Path(__file__).parents[1] / "data" / "vllm-rs-0.32.0.prom").read_text()
SAMPLES = {sample.name for family in text_string_to_metric_families(PAGE) for sample in family.samples}
SPAN = window(5, 15)
EDGES = Edges((0.5,), (0.05,), (10.0,), (0.5,), (0.05,))
ABSENT = {
    "admission_rejections_total": "it turns nobody away",
    "cache_config_info": "the size of the KV cache stays a guess until the requests overrule it",
    "gpu_cache_usage_perc": "its name before 0.10",
    "gpu_prefix_cache_hits_total": "its name before 0.10",
    "time_per_output_token_seconds": "its name before 0.11",
}


def test_it_has_every_series_that_a_verdict_needs() -> None:
    stored = {name.removeprefix("vllm:"): 1.0 for name in SAMPLES}
    slo = Slo(0.5, 0.05, 0.99, 3600.0, e2e_seconds=10.0)
    assert missing({"h100": stored}, slo, exact=False) == ()
    lacking = {name: count for name, count in stored.items() if not name.startswith("time_to_first_token")}
    assert missing({"h100": lacking}, slo, exact=False) != ()


def test_what_it_lacks_of_what_is_asked_for_is_listed_with_what_that_means() -> None:
    asked = (*queries.fast_queries(SPAN, EDGES), *queries.slow_queries(), queries.history_query(60.0, EDGES))
    names = {name for query in asked for name in re.findall(r"vllm:(\w+)", query.promql)}
    native = {name for each in NEEDED for name in each.names if not re.search("_(count|sum|bucket|total)$", name)}
    absent = {name for name in names - native if f"vllm:{name}" not in SAMPLES}
    assert {re.sub("_(count|sum|bucket)$", "", name) for name in absent} == set(ABSENT)
