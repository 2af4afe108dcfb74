"""vLLM 0.32's metric families as data: names, types, help, labels and bucket edges, in the order of its /metrics."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class MetricType(enum.Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class BucketKind(enum.Enum):
    """Families of `--custom-histogram-buckets` that share edges."""

    TTFT = "time_to_first_token"
    ITL = "inter_token_latency"
    REQUEST_LATENCY = "request_latency"
    ITERATION_TOKENS = "iteration_tokens"
    PARAMS_N = "request_params_n"
    PREEMPTIONS = "request_num_preemptions"
    REQUEST_TOKENS = "request_tokens"
    KV_RESIDENCY = "kv_cache_residency"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name (a counter's without _total), and at most one label, apart from model_name and engine."""

    name: str
    type: MetricType
    help: str
    label: str | None = None
    label_values: tuple[str, ...] = ("",)
    buckets: BucketKind | None = None
    with_engine: bool = True
    with_model: bool = True


LATENCY_EDGES = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)

EDGES: dict[BucketKind, tuple[float, ...]] = {
    BucketKind.TTFT: (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
        *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
    ),
    BucketKind.ITL: (
        *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
        *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
    ),
    BucketKind.REQUEST_LATENCY: LATENCY_EDGES,
    BucketKind.ITERATION_TOKENS: (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    BucketKind.PARAMS_N: (1, 2, 5, 10, 20),
    BucketKind.PREEMPTIONS: (1, 2, 3, 4, 5, 10, 20),
}


def bucket_edges(kind: BucketKind, max_model_len: int) -> tuple[float, ...]:
    """vLLM's default edges; token counts follow 1, 2, 5, 10, ... up to the model's length."""
    if kind is not BucketKind.REQUEST_TOKENS:
        return tuple(float(edge) for edge in EDGES[kind])
    edges: list[float] = []
    decade = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * decade > max_model_len:
                return tuple(edges)
            edges.append(float(mantissa * decade))
        decade *= 10


def _counter(name: str, help_text: str, label: str | None = None, *values: str, with_engine: bool = True) -> Family:
    return Family(f"vllm:{name}", MetricType.COUNTER, help_text, label, values or ("",), None, with_engine)


def _gauge(name: str, help_text: str, label: str | None = None, *values: str, with_model: bool = True) -> Family:
    return Family(f"vllm:{name}", MetricType.GAUGE, help_text, label, values or ("",), None, True, with_model)


def _histogram(name: str, buckets: BucketKind, help_text: str) -> Family:
    return Family(f"vllm:{name}", MetricType.HISTOGRAM, help_text, buckets=buckets)


_MFU = "(for Model Flops Utilization calculations)."
_EXTERNAL = "External prefix cache {} from KV connector cross-instance cache sharing, in terms of number of {} tokens."

FAMILIES: tuple[Family, ...] = (
    _counter("estimated_flops_per_gpu", f"Estimated number of floating point operations per GPU {_MFU}"),
    _counter("estimated_read_bytes_per_gpu", f"Estimated number of bytes read from memory per GPU {_MFU}"),
    _counter("estimated_write_bytes_per_gpu", f"Estimated number of bytes written to memory per GPU {_MFU}"),
    _gauge("num_requests_running", "Number of requests in model execution batches."),
    _gauge("num_requests_waiting", "Number of requests waiting to be processed."),
    _gauge(
        "num_requests_waiting_by_reason",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
        "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons "
        "equals vllm:num_requests_waiting.",
        "reason",
        "capacity",
        "deferred",
    ),
    _gauge(
        "engine_sleep_state",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
        "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
        "sleep_state",
        "awake",
        "weights_offloaded",
        "discard_all",
    ),
    _gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."),
    _counter("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens."),
    _counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens."),
    _counter("external_prefix_cache_queries", _EXTERNAL.format("queries", "queried")),
    _counter("external_prefix_cache_hits", _EXTERNAL.format("hits", "cached")),
    _counter("mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items."),
    _counter("mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items."),
    _counter("num_preemptions", "Cumulative number of preemption from the engine."),
    _counter("prompt_tokens", "Number of prefill tokens processed."),
    _counter(
        "prompt_tokens_by_source",
        "Number of prompt tokens by source.",
        "source",
        "local_compute",
        "local_cache_hit",
        "external_kv_transfer",
    ),
    _counter("prompt_tokens_cached", "Number of cached prompt tokens (local + external)."),
    _counter(
        "prompt_tokens_cached_by_source",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), "
        "disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to "
        "vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
        "source",
        "device",
        "host",
        "p2p",
        "disk",
        "external_unspecified",
    ),
    _counter("generation_tokens", "Number of generation tokens processed."),
    _counter(
        "request_success",
        "Count of successfully processed requests.",
        "finished_reason",
        "stop",
        "length",
        "abort",
        "error",
        "repetition",
    ),
    _counter(
        "admission_rejections",
        "Number of admission attempts rejected by a queue limit, by reason.",
        "reason",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
        with_engine=False,
    ),
    _histogram("request_prompt_tokens", BucketKind.REQUEST_TOKENS, "Number of prefill tokens processed."),
    _histogram("request_generation_tokens", BucketKind.REQUEST_TOKENS, "Number of generation tokens processed."),
    _histogram("iteration_tokens_total", BucketKind.ITERATION_TOKENS, "Histogram of number of tokens per engine_step."),
    _histogram(
        "request_max_num_generation_tokens",
        BucketKind.REQUEST_TOKENS,
        "Histogram of maximum number of requested generation tokens.",
    ),
    _histogram("request_params_n", BucketKind.PARAMS_N, "Histogram of the n request parameter."),
    _histogram(
        "request_params_max_tokens", BucketKind.REQUEST_TOKENS, "Histogram of the max_tokens request parameter."
    ),
    _histogram("time_to_first_token_seconds", BucketKind.TTFT, "Histogram of time to first token in seconds."),
    _histogram("inter_token_latency_seconds", BucketKind.ITL, "Histogram of inter-token latency in seconds."),
    _histogram(
        "request_time_per_output_token_seconds",
        BucketKind.ITL,
        "Histogram of time_per_output_token_seconds per request.",
    ),
    _histogram(
        "e2e_request_latency_seconds", BucketKind.REQUEST_LATENCY, "Histogram of e2e request latency in seconds."
    ),
    _histogram(
        "request_queue_time_seconds",
        BucketKind.REQUEST_LATENCY,
        "Histogram of time spent in WAITING phase for request.",
    ),
    _histogram(
        "request_inference_time_seconds",
        BucketKind.REQUEST_LATENCY,
        "Histogram of time spent in RUNNING phase for request.",
    ),
    _histogram(
        "request_prefill_time_seconds",
        BucketKind.REQUEST_LATENCY,
        "Histogram of time spent in PREFILL phase for request.",
    ),
    _histogram(
        "request_decode_time_seconds",
        BucketKind.REQUEST_LATENCY,
        "Histogram of time spent in DECODE phase for request.",
    ),
    _histogram(
        "request_num_preemptions",
        BucketKind.PREEMPTIONS,
        "Histogram of the number of times a request was preempted.",
    ),
    _histogram(
        "request_prefill_kv_computed_tokens",
        BucketKind.REQUEST_TOKENS,
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
    ),
    _gauge("cache_config_info", "Information of the LLMEngine CacheConfig", with_model=False),
)


def cache_config(kv_tokens: int, block_tokens: int, max_model_len: int, memory_utilization: float) -> dict[str, str]:
    """The labels of vllm:cache_config_info besides engine, as a default vLLM shows them."""
    return {
        "_block_size_resolved": "True",
        "block_size": str(block_tokens),
        "cache_dtype": "auto",
        "cache_hit_alignment_tokens": "None",
        "effective_attention_block_size": str(block_tokens),
        "enable_mamba_shared_prefix_checkpoint": "False",
        "enable_prefix_caching": "True",
        "gpu_memory_utilization": str(memory_utilization),
        "hash_block_size": "None",
        "is_attention_free": "False",
        "kv_cache_dtype_skip_layers": "[]",
        "kv_cache_layout": "None",
        "kv_cache_max_concurrency": str(kv_tokens / max_model_len),
        "kv_cache_memory_bytes": "None",
        "kv_cache_size_tokens": str(kv_tokens),
        "kv_offloading_backend": "native",
        "kv_offloading_size": "None",
        "kv_sharing_fast_prefill": "False",
        "mamba_block_size": "None",
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_page_size_padded": "None",
        "mamba_ssm_cache_dtype": "float32",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(kv_tokens // block_tokens),
        "num_gpu_blocks_override": "None",
        "prefix_cache_retention_interval": "0",
        "prefix_caching_hash_algo": "sha256",
        "prefix_match_unit": "None",
        "replayssm_buffer_len": "16",
        "skip_page_size_padded": "None",
        "sliding_window": "None",
        "swa_bounded_replay": "True",
        "use_kda_recoverssm": "False",
        "use_replayssm": "False",
        "user_specified_block_size": "False",
    }
