"""What an emulated engine runs with, checked the way vLLM checks its own flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.emulator.client_reports import ClientReports
from holdfast.emulator.families import cache_config
from holdfast.emulator.fast_loop import FastLoopScheduler
from holdfast.emulator.metrics import EngineMetrics
from holdfast.enginemodel.enginetimer import EngineTimer, SharedTimer
from holdfast.enginemodel.host import (
    ASYNCHRONOUS,
    NO_FRONT_END,
    SYNCHRONOUS,
    USUAL_FRONT_END,
    GraphMode,
    Graphs,
    Host,
    capture_edge,
)
from holdfast.enginemodel.prior import MEMORY_UTILIZATION, EnginePrior, assumed_model, engine_prior
from holdfast.enginemodel.roofline import StepWork, step_work
from holdfast.enginemodel.scheduler import BLOCK_TOKENS, Scheduler, SchedulerLimits, StepPlan
from holdfast_engine.objectives.limits import LimitsFiles
from holdfast_engine.stats.engine_info import front_end
from holdfast_engine.stats.stats_fields import stats_path

USUAL_MODEL_LEN = 32_768
"""Context length where none is given, as far as the KV cache holds it."""

DTYPE = "bfloat16"
"""What models are computed in: `--dtype auto` takes that of nearly every checkpoint."""

DRAIN_FILE = "/tmp/holdfast-draining"  # noqa: S108 - the pod's preStop makes it
"""Where the pod says that it is going."""


class BadOptions(ValueError):
    """Options an engine would not start with; the message names the flag and the remedy."""


@dataclass(frozen=True, slots=True)
class EmulatorOptions:
    """Flags of `holdfast emulate`; None leaves vLLM's default for the model and accelerator.

    `speed` divides every step. `host_factor` makes the engine's host slower, 0 takes it away; `front_end_factor` does
    so with what a usual API server adds. Stages and data-parallel engines are emulated as one engine that shares each
    step among them. `engine_host` stands in for the usual host with all its facts.
    `cold_start_seconds` pass before the server listens, `connection_close_share` of the answers end their connection,
    all of them once `drain_file` is there. `replica` names this engine in a header of every answer. `engine_limits` are
    the files in which the fast loop finds its limits; None leaves it out. In `engine_folder` it keeps its counts, as
    the plugin does; without, an engine that is killed takes its open requests along. `adapters` are names that clients
    may ask for like the model, which take no time and no memory. `mfu_metrics` counts what steps compute and move, as
    vLLM does where asked to.
    """

    model: str
    accelerator: str = "h100"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    quantization: str | None = None
    served_names: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    host: str = "0.0.0.0"  # noqa: S104 - an engine serves its pod's address
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_active_seqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_num_queued_reqs: int | None = None
    long_prefill_token_threshold: int = 0
    kv_tokens: int | None = None
    memory_utilization: float = MEMORY_UTILIZATION
    custom_buckets: Mapping[str, Sequence[float]] = field(default_factory=dict)
    mfu_metrics: bool = False
    shutdown_timeout_seconds: float = 0.0
    cold_start_seconds: float = 0.0
    async_scheduling: bool = True
    enforce_eager: bool = False
    max_cudagraph_capture_size: int | None = None
    host_factor: float = 1.0
    front_end_factor: float = 0.0
    engine_host: Host | None = None
    speed: float = 1.0
    connection_close_share: float = 0.0
    drain_file: str = DRAIN_FILE
    keep_alive_seconds: float = 75.0
    replica: str = ""
    engine_limits: tuple[str, ...] | None = None
    engine_folder: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model; the first one labels the metrics."""
        return self.served_names or (self.model,)


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """The options with every default filled in."""

    options: EmulatorOptions
    prior: EnginePrior
    limits: SchedulerLimits
    max_model_len: int

    def scheduler(self, clock: Callable[[], float], own_name: str = "") -> Scheduler:
        """With the fast loop where its limits are given; `own_name` keeps claims of headers apart from bodies."""
        files = self.options.engine_limits
        if files is None:
            return Scheduler(self.limits)
        host = self.timer().host
        reports = None if host.front_end == NO_FRONT_END else ClientReports()
        found = LimitsFiles(map(Path, files))
        folder = self.options.engine_folder
        stats = Path(folder) / stats_path(0).name if folder else None
        return FastLoopScheduler(self.limits, found, clock, host.graphs.captured, reports, own_name, stats)

    def timer(self) -> EngineTimer:
        """Step times with the host that the options ask for."""
        timer = self.prior.timer.with_host(self.options.engine_host or self._host())
        return replace(timer, gpu=SharedTimer(timer.gpu, self.prior.engines)) if self.prior.engines > 1 else timer

    def _host(self) -> Host:
        options, usual = self.options, self.prior.host
        edge = options.max_cudagraph_capture_size
        if edge is None and usual.graphs.edge is not None:
            edge = capture_edge(self.limits.max_num_seqs, self.limits.max_num_batched_tokens, usual.graphs.edge)
        graphs = Graphs(GraphMode.NONE if options.enforce_eager else usual.graphs.mode, edge)
        depth = ASYNCHRONOUS if options.async_scheduling else SYNCHRONOUS
        front_end = USUAL_FRONT_END.slower(options.front_end_factor)
        return replace(usual.slower(options.host_factor), depth=depth, graphs=graphs, front_end=front_end)

    def work(self) -> Callable[[StepPlan], StepWork] | None:
        """Estimates what a step computes and moves, if that is to be counted."""
        options = self.options
        if not options.mfu_metrics:
            return None
        model = assumed_model(options.model, options.quantization)

        def of(plan: StepPlan) -> StepWork:
            chunks = ((chunk, prefix) for _, chunk, prefix in plan.prefills)
            return step_work(model, options.tensor_parallel_size, chunks, len(plan.decodes), plan.decode_kv_tokens)

        return of

    def engine_info(self) -> dict[str, str]:
        """The labels of holdfast:engine_info, as the plugin reads them in a vLLM with these options."""
        options, edge = self.options, self._graph_edge_tokens()
        return {
            "max_model_len": str(self.max_model_len),
            "dtype": DTYPE,
            # vLLM takes it from the checkpoint, which is not there, as is the shape of the model.
            "quantization": options.quantization or "",
            "tensor_parallel": str(options.tensor_parallel_size),
            "pipeline_parallel": str(options.pipeline_parallel_size),
            "graph_edge": "" if edge is None else str(edge),
            "speculative_tokens": "0",
            "model_shape": "",
            "front_end": front_end(servers=1),
        }

    def _graph_edge_tokens(self) -> int | None:
        graphs = self.timer().host.graphs
        return 0 if graphs.mode is GraphMode.NONE else graphs.edge

    def metrics(self, created_at: float) -> EngineMetrics:
        kv_tokens = self.limits.kv_tokens // self.options.data_parallel_size
        labels = cache_config(kv_tokens, BLOCK_TOKENS, self.max_model_len, self.options.memory_utilization)
        return EngineMetrics(self.options.names[0], self.max_model_len, created_at, labels, self.options.custom_buckets)


def set_up(options: EmulatorOptions) -> EngineSetup:
    """Fill in defaults and refuse what vLLM refuses."""
    prior = engine_prior(
        options.model,
        options.accelerator,
        None,
        options.tensor_parallel_size,
        options.quantization,
        options.memory_utilization,
        pipeline=options.pipeline_parallel_size,
        data=options.data_parallel_size,
    )
    held = prior.kv_tokens_with(prior.limits(options.max_num_seqs, options.max_num_batched_tokens))
    kv_tokens = prior.engines * held if options.kv_tokens is None else options.kv_tokens
    if kv_tokens < BLOCK_TOKENS:
        raise BadOptions(
            f"--model {options.model}: its weights leave no KV cache on {options.tensor_parallel_size} x "
            f"{options.accelerator}; raise --tensor-parallel-size or --gpu-memory-utilization, or use a larger "
            "--accelerator"
        )
    limits = SchedulerLimits(
        max_num_seqs=prior.data * (options.max_num_seqs or prior.max_num_seqs_default),
        max_num_batched_tokens=prior.engines * (options.max_num_batched_tokens or prior.max_num_batched_tokens_default),
        kv_tokens=kv_tokens,
        max_num_active_seqs=options.max_num_active_seqs,
        max_num_queued_reqs=options.max_num_queued_reqs,
        max_num_queued_tokens=options.max_num_queued_tokens,
        long_prefill_token_threshold=options.long_prefill_token_threshold,
    )
    _check_limits(limits)
    return EngineSetup(options, prior, limits, _model_len(options.max_model_len, kv_tokens))


def _check_limits(limits: SchedulerLimits) -> None:
    if limits.max_num_batched_tokens < limits.max_num_seqs:
        raise BadOptions(
            f"--max-num-batched-tokens {limits.max_num_batched_tokens} is below --max-num-seqs {limits.max_num_seqs}; "
            "lower --max-num-seqs too"
        )
    if limits.max_num_active_seqs is not None and limits.max_num_active_seqs > limits.max_num_seqs:
        raise BadOptions(
            f"--max-num-active-seqs {limits.max_num_active_seqs} exceeds --max-num-seqs {limits.max_num_seqs}; lower it"
        )


def _model_len(given: int | None, kv_tokens: int) -> int:
    held = kv_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    if given is not None and given > held:
        raise BadOptions(f"--max-model-len {given} exceeds the KV cache of {held} tokens; lower it to at most {held}")
    return given or min(USUAL_MODEL_LEN, held)
