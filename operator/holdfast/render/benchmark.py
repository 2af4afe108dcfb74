"""The Job that runs a benchmark, and the ConfigMap with its result."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.api.benchmark_summary import TRIAL_COLUMNS, TUNE_COLUMNS, Summary, TuneFigures
from holdfast.api.llmbenchmark import KIND, LLMBenchmark, LLMBenchmarkSpec, Recording
from holdfast.api.llmservice import API_VERSION, GROUP, Accelerator, LLMService, SecretKeyReference, SecretReference
from holdfast.api.objectives import Objectives
from holdfast.api.quantities import format_duration
from holdfast.enginemodel.catalog import find_accelerator
from holdfast.render import restricted
from holdfast.render.settings import RenderSettings
from holdfast.render.tuning import LIMITS_FILE, SERVICE_FILE, URL, with_engine
from holdfast.rendered import names
from holdfast.rendered.declared import run_of
from holdfast.rendered.names import Manifest
from holdfast.rendered.own_engine import OwnEngine

BENCHMARK_LABEL = f"{GROUP}/benchmark"
RUN_LABEL = f"{GROUP}/benchmark-run"

KEPT_SECONDS = 86_400
"""A finished Job, and so its log with the full report, is kept for a day."""

TRIALS_SHARE = 0.5
"""Of the timeout of a run that tunes: the rest is for its engine to start, and to confirm what was found by then."""

_FILES = "/benchmark"
_CA = "ca.crt"
_TRACE, _LENGTHS = "trace", "lengths"
_SUMMARY = "/dev/termination-log"
_RESOURCES = {"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
_COMPONENT = {"app.kubernetes.io/name": names.MANAGER, "app.kubernetes.io/component": "benchmark"}


@dataclass(frozen=True, slots=True)
class Measurand:
    """What a benchmark is to ask, with what its service adds to what it says itself.

    `url` is the address without a path of the API; `slo` is None where nobody gives objectives; `system` names the GPU
    as bench knows it, None where it does not or a service has several. What they cost is not here: a service may grow
    while it is measured.
    """

    url: str
    name: str
    model: str | None
    slo: Objectives | None
    api_key: SecretKeyReference | None
    pull_secrets: tuple[SecretReference, ...]
    system: str | None = None


def measurand(benchmark: LLMBenchmark, service: LLMService | None) -> Measurand:
    """What is measured; `service` is the one that is referred to."""
    spec, target = benchmark.spec, benchmark.spec.target
    if service is None:
        url = target.url or ""
        return Measurand(url, url, target.model, spec.slo, target.api_key_secret_ref, spec.image_pull_secrets)
    of = service.spec
    return Measurand(
        url=names.service_url(service),
        name=service.metadata.name,
        model=target.model or of.model.served_model_name,
        slo=spec.slo or of.slo,
        api_key=target.api_key_secret_ref or of.engine.api_key_secret_ref,
        pull_secrets=spec.image_pull_secrets or of.engine.image_pull_secrets,
        system=_system(of.accelerators),
    )


def _system(accelerators: Sequence[Accelerator]) -> str | None:
    """The GPU that all replicas have; of several nobody knows which one answers, and bench knows no declared one."""
    if len(accelerators) != 1 or accelerators[0].hardware is not None:
        return None
    (only,) = accelerators
    shape = find_accelerator(only.name, only.node_selector, only.resource)
    return None if shape is None else shape.system


def job_name(benchmark: LLMBenchmark) -> str:
    """One Job for each run: a spec that comes back after another one must not find the Job that it had before."""
    return f"{benchmark.metadata.name}-{names.short_hash([run_of(benchmark), benchmark.metadata.generation])}"


def result_name(benchmark: LLMBenchmark) -> str:
    """The ConfigMap with the newest result."""
    return f"{benchmark.metadata.name}-benchmark"


def job(benchmark: LLMBenchmark, of: Measurand, settings: RenderSettings, engine: OwnEngine | None = None) -> Manifest:
    """One pod, once: it may do nothing at the API server, and leaves its result as its termination message.

    A run that tunes has an `engine` of its own in the pod.
    """
    labels = {**_COMPONENT, names.MANAGED_BY: names.MANAGER, **_labels(benchmark)}
    template: Manifest = {"metadata": {"labels": labels}, "spec": _pod(benchmark, of, settings, engine)}
    if engine is not None:
        template = with_engine(template, engine, of.slo)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(benchmark, job_name(benchmark)),
        "spec": {
            "backoffLimit": 0,  # half a load and then a whole one would be another benchmark than was asked for
            "activeDeadlineSeconds": math.ceil(benchmark.spec.timeout_seconds),
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": template,
        },
    }


def config_map(benchmark: LLMBenchmark, summary: Summary) -> Manifest:
    """The result, as far as it was understood: nothing of what a container wrote is passed on unread."""
    data = {"summary.json": json.dumps(summary.model_dump(mode="json", exclude_none=True), indent=1) + "\n"}
    if summary.sweep is not None:
        data["trials.csv"] = _table([TRIAL_COLUMNS, *summary.sweep.trials])
    if summary.tune is not None:
        data["trials.csv"] = _table([TUNE_COLUMNS, *summary.tune.trials])
        data |= {"patch.json": patch} if (patch := patch_of(summary.tune)) else {}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(benchmark, result_name(benchmark)),
        "data": data,
    }


def patch_of(found: TuneFigures) -> str:
    """What holds the replicas of a service to the limits that were found, for kubectl patch; empty without any."""
    if found.max_num_seqs is None or found.max_num_batched_tokens is None:
        return ""
    limits = {"maxNumSeqs": found.max_num_seqs, "maxNumBatchedTokens": found.max_num_batched_tokens}
    return json.dumps({"spec": {"batching": {"mode": "Fixed", **limits}}})


def flags_of(found: TuneFigures) -> str:
    """The same as vLLM takes it."""
    if found.max_num_seqs is None or found.max_num_batched_tokens is None:
        return ""
    return f"--max-num-seqs={found.max_num_seqs} --max-num-batched-tokens={found.max_num_batched_tokens}"


def _metadata(benchmark: LLMBenchmark, name: str) -> Manifest:
    meta = benchmark.metadata
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {
        "name": name,
        "namespace": meta.namespace,
        "labels": {**_COMPONENT, names.MANAGED_BY: names.MANAGER, **_labels(benchmark)},
        "ownerReferences": [owner],
    }


def _labels(benchmark: LLMBenchmark) -> dict[str, str]:
    """Not the label of services: pods that carry it count as replicas."""
    return {BENCHMARK_LABEL: benchmark.metadata.name, RUN_LABEL: run_of(benchmark)}


def _pod(benchmark: LLMBenchmark, of: Measurand, settings: RenderSettings, engine: OwnEngine | None) -> Manifest:
    secrets = [{"name": secret.name} for secret in of.pull_secrets]
    volumes = _volumes(benchmark.spec)
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": restricted.pod_security(settings, restricted.USER, "runAsUser", "runAsGroup", "fsGroup"),
        **({"imagePullSecrets": secrets} if secrets else {}),
        "containers": [_container(benchmark.spec, of, settings.activator_image, engine, bool(volumes))],
        **({"volumes": volumes} if volumes else {}),
    }


def _container(spec: LLMBenchmarkSpec, of: Measurand, image: str, engine: OwnEngine | None, files: bool) -> Manifest:
    key = of.api_key
    environment = [
        {"name": "HOLDFAST_API_KEY", "valueFrom": {"secretKeyRef": {"name": key.name, "key": key.key}}}
        for key in ([key] if key else [])
    ]
    return {
        "name": names.BENCHMARK_CONTAINER,
        "image": image,
        "args": ["bench", *arguments(spec, of)] if engine is None else ["tune", *tune_arguments(spec, of, engine)],
        **({"env": environment} if environment else {}),
        "terminationMessagePath": _SUMMARY,
        "terminationMessagePolicy": "File",
        "securityContext": restricted.container_security(),
        "resources": spec.resources or _RESOURCES,
        **({"volumeMounts": _mounts(spec)} if files else {}),
    }


def _volumes(spec: LLMBenchmarkSpec) -> list[Manifest]:
    """Each file by itself, under a name of ours."""
    found = []
    for name, recording in _recordings(spec):
        source = recording.config_map_key_ref
        items = [{"key": source.key, "path": name}]
        found.append({"name": name, "configMap": {"name": source.name, "items": items}})
    if ca := _ca(spec):
        found.append({"name": "ca", "secret": {"secretName": ca.name, "items": [{"key": ca.key, "path": _CA}]}})
    return found


def _mounts(spec: LLMBenchmarkSpec) -> list[Manifest]:
    mounted = [name for name, _ in _recordings(spec)] + (["ca"] if _ca(spec) else [])
    return [{"name": name, "mountPath": f"{_FILES}/{name}", "readOnly": True} for name in mounted]


def _ca(spec: LLMBenchmarkSpec) -> SecretKeyReference | None:
    """Certificates to trust; an engine of its own is asked without TLS."""
    return spec.target.ca_secret_ref if spec.tune is None else None


def _recordings(spec: LLMBenchmarkSpec) -> list[tuple[str, Recording]]:
    drawn = spec.lengths.trace if spec.lengths else None
    return [(name, found) for name, found in ((_TRACE, spec.trace), (_LENGTHS, drawn)) if found is not None]


def arguments(spec: LLMBenchmarkSpec, of: Measurand) -> list[str]:
    """The options of `holdfast bench`: a list, which no shell ever sees."""
    target = spec.target
    given = [
        ("url", of.url),
        ("model", of.model),
        ("api", target.api.lower()),
        ("ca-file", f"{_FILES}/ca/{_CA}" if target.ca_secret_ref else None),
        *_load(spec),
        *_lengths(spec),
        ("duration", spec.duration),
        ("slo", _slo(of.slo)),
        ("objective", of.slo.objective if of.slo else None),
        ("max-client-lag", spec.max_client_lag),
        ("accelerator", of.system),
        ("summary", _SUMMARY),
    ]
    flags = [
        "--json",
        *(["--sweep"] if spec.sweep is not None else []),
        *(["--throughput"] if spec.throughput is not None else []),
        *([] if target.ignore_eos else ["--no-ignore-eos"]),
    ]
    return [*_options(given), *flags]


def tune_arguments(spec: LLMBenchmarkSpec, of: Measurand, engine: OwnEngine) -> list[str]:
    """The options of `holdfast tune`, against the engine in the same pod."""
    given = [
        ("url", URL),
        ("model", of.model),
        ("api", spec.target.api.lower()),
        ("filename", SERVICE_FILE),
        ("limits-file", LIMITS_FILE),
        ("accelerator", engine.accelerator),
        *_lengths(spec),
        ("most-trials", engine.tune.max_trials),
        ("time-limit", format_duration(TRIALS_SHARE * spec.timeout_seconds)),
        ("requests", engine.tune.requests),
        ("max-client-lag", spec.max_client_lag),
        ("summary", _SUMMARY),
    ]
    return [*_options(given), "--json", *([] if spec.target.ignore_eos else ["--no-ignore-eos"])]


Given = list[tuple[str, object]]


def _options(given: Given) -> list[str]:
    return [f"--{name}={names.literal(str(value))}" for name, value in given if value is not None]


def _load(spec: LLMBenchmarkSpec) -> Given:
    if spec.sweep is not None:
        return [("rate", f"{spec.sweep.start_rps:g}"), ("sweep-trials", spec.sweep.max_trials)]
    if spec.rate is not None:
        return [("rate", f"{spec.rate.rps:g}"), ("cv", f"{spec.rate.cv:g}")]
    if spec.trace is not None:
        trace = spec.trace
        start = [("trace-start", trace.start)] if trace.start else []
        return [("trace", _file(_TRACE)), ("format", trace.format), ("speed", f"{trace.speed:g}"), *start]
    if spec.latency is not None:
        return [("latency", spec.latency.batch_size), ("requests", spec.latency.requests)]
    if spec.throughput is not None:
        return [("requests", spec.throughput.requests)]
    return [("concurrency", spec.concurrency)]


def _lengths(spec: LLMBenchmarkSpec) -> Given:
    lengths = spec.lengths
    if lengths is None:
        return []
    if lengths.trace is not None:
        return [("lengths", _file(_LENGTHS)), ("format", lengths.trace.format)]
    cv = None if lengths.cv is None else f"{lengths.cv:g}"
    return [("prompt-tokens", lengths.prompt_tokens), ("output-tokens", lengths.output_tokens), ("length-cv", cv)]


def _slo(slo: Objectives | None) -> str | None:
    if slo is None:
        return None
    bounds = (("ttft", slo.ttft), ("tpot", slo.tpot), ("e2e", slo.e2e))
    return ",".join(f"{name}={bound}" for name, bound in bounds if bound is not None)


def _file(name: str) -> str:
    return f"{_FILES}/{name}/{name}"


def _table(rows: list[tuple[object, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
