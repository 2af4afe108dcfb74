"""Objects that must be refused and objects that must be taken, for the types and for the real API server alike."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DURATION = "write a number and a unit"
MINIMAL: dict[str, Any] = {
    "apiVersion": "holdfast.dev/v1alpha1",
    "kind": "LLMService",
    "metadata": {"name": "chat"},
    "spec": {
        "model": {"uri": "Qwen/Qwen3-8B"},
        "slo": {"ttft": "500ms", "tpot": "30ms"},
        "accelerators": [{"name": "h100"}],
    },
}


@dataclass(frozen=True)
class Refusal:
    """A change to the minimal object, and what the refusal must name; `server` where the API server words it itself."""

    sentence: str
    spec: Mapping[str, Any]
    at: str
    remedy: str
    server: str = ""
    name: str = "chat"

    @property
    def body(self) -> dict[str, Any]:
        """The whole object."""
        return changed(self.spec, self.name)


@dataclass(frozen=True)
class Accepted:
    """A change to the minimal object that must be taken."""

    sentence: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    name: str = "chat"

    @property
    def body(self) -> dict[str, Any]:
        """The whole object."""
        return changed(self.spec, self.name)


def changed(spec: Mapping[str, Any], name: str = "chat") -> dict[str, Any]:
    """The minimal object with changes merged into its spec: None removes, lists replace."""
    body = copy.deepcopy(MINIMAL)
    body["metadata"]["name"] = name
    _merge(body["spec"], spec)
    return body


def _merge(target: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = copy.deepcopy(value)


def _accelerators(*items: Mapping[str, Any]) -> dict[str, Any]:
    return {"accelerators": [dict(item) for item in items]}


def _classes(*items: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"slo": {"classes": [dict(item) for item in items]}, **more}


def _adapters(*items: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": {"lora": {"adapters": [dict(item) for item in items], **more}}}


def _container(**fields: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [{"name": "vllm", **fields}]}}}


H100, L40S = {"name": "h100"}, {"name": "l40s"}
ADAPTERS = "spec.model.lora.adapters"
SQL: dict[str, Any] = {"name": "sql", "uri": "pvc://adapters/sql"}
TIGHT_SQL = {**SQL, "slo": {"ttft": "200ms"}}
PREMIUM = {"name": "premium", "ttft": "200ms", "tpot": "20ms", "priority": 10}
LABEL_50 = "a" * 50

_SLO = (
    Refusal(
        "an objective of 100 % leaves no budget", {"slo": {"objective": "100%"}}, "spec.slo.objective", "below 100%"
    ),
    Refusal("an objective of 50 % is too low", {"slo": {"objective": "50%"}}, "spec.slo.objective", "above 50%"),
    Refusal("an objective needs a percent sign", {"slo": {"objective": "0.99"}}, "spec.slo.objective", "percent sign"),
    Refusal("an objective is not a word", {"slo": {"objective": "high"}}, "spec.slo.objective", "such as 99%"),
    Refusal("an empty objective is refused", {"slo": {"objective": ""}}, "spec.slo.objective", "such as 99%"),
    Refusal("e2e below ttft", {"slo": {"e2e": "400ms"}}, "spec.slo.e2e", "raise e2e, lower ttft"),
    Refusal("e2e equal to ttft in another unit", {"slo": {"e2e": "0.5s"}}, "spec.slo.e2e", "raise e2e, lower ttft"),
    Refusal("e2e of less with a larger number", {"slo": {"ttft": "1m", "e2e": "59s"}}, "spec.slo.e2e", "raise e2e"),
    Refusal("a ttft of zero", {"slo": {"ttft": "0ms"}}, "spec.slo.ttft", "above 0"),
    Refusal("a tpot of zero", {"slo": {"tpot": "0s"}}, "spec.slo.tpot", "above 0"),
    Refusal("a ttft without unit", {"slo": {"ttft": "500"}}, "spec.slo.ttft", DURATION),
    Refusal("a ttft with a space", {"slo": {"ttft": "500 ms"}}, "spec.slo.ttft", DURATION),
    Refusal("a negative ttft", {"slo": {"ttft": "-1s"}}, "spec.slo.ttft", DURATION),
    Refusal("a ttft in an unknown unit", {"slo": {"ttft": "500us"}}, "spec.slo.ttft", DURATION),
    Refusal("a ttft in a compound unit", {"slo": {"ttft": "1m30s"}}, "spec.slo.ttft", DURATION),
    Refusal("a ttft that ends with a line break", {"slo": {"ttft": "500ms\n"}}, "spec.slo.ttft", DURATION),
    Refusal("a ttft of more than a day", {"slo": {"ttft": "2d"}}, "spec.slo.ttft", "at most 1d"),
    Refusal("an unparsable ttft beside e2e", {"slo": {"ttft": "x", "e2e": "1s"}}, "spec.slo.ttft", DURATION),
    Refusal("an unparsable e2e", {"slo": {"e2e": "1 day"}}, "spec.slo.e2e", DURATION),
    Refusal("an unparsable tpot", {"slo": {"tpot": "fast"}}, "spec.slo.tpot", DURATION),
    Refusal("an unparsable window", {"slo": {"window": "hour"}}, "spec.slo.window", DURATION),
    Refusal("a window below five minutes", {"slo": {"window": "299s"}}, "spec.slo.window", "from 5m to 30d"),
    Refusal("a window above thirty days", {"slo": {"window": "30.1d"}}, "spec.slo.window", "from 5m to 30d"),
    Refusal(
        "a duration that is far too long", {"slo": {"ttft": "1" * 40 + "s"}}, "spec.slo.ttft", "at most 16", "Too long"
    ),
    Refusal("a ttft as a number", {"slo": {"ttft": 500}}, "spec.slo.ttft", "write it with a unit, such as 500ms"),
    Refusal("a tpot as a number", {"slo": {"tpot": 30}}, "spec.slo.tpot", "write it with a unit, such as 500ms"),
    Refusal("an e2e as a number", {"slo": {"e2e": 20}}, "spec.slo.e2e", "write it with a unit, such as 500ms"),
    Refusal("a ttft of 0 without unit", {"slo": {"ttft": 0}}, "spec.slo.ttft", "a number without unit"),
    Refusal("a negative number", {"slo": {"tpot": -5}}, "spec.slo.tpot", "a number without unit"),
    Refusal("a huge number", {"slo": {"ttft": 2**40, "e2e": 1}}, "spec.slo.ttft", "a number without unit"),
    Refusal(
        "an objective as a number", {"slo": {"objective": 99}}, "spec.slo.objective", "a percent sign, such as 99%"
    ),
    Refusal(
        "a ttft as a fraction", {"slo": {"ttft": 0.5}}, "spec.slo.ttft", "with a unit, such as 500ms", "must be of type"
    ),
    Refusal(
        "an objective as a share",
        {"slo": {"objective": 0.99}},
        "spec.slo.objective",
        "a number without unit: write it with a percent sign, such as 99%",
        "must be of type",
    ),
    Refusal("a tpot that is true", {"slo": {"tpot": True}}, "spec.slo.tpot", "put quotes around it", "must be of type"),
    Refusal("a missing ttft", {"slo": {"ttft": None}}, "spec.slo.ttft", "add it", "Required value"),
    Refusal("a missing slo", {"slo": None}, "spec.slo", "add it", "Required value"),
)
_MODEL = (
    Refusal("a missing model", {"model": None}, "spec.model", "is required without target: add it"),
    Refusal("an empty uri", {"model": {"uri": ""}}, "spec.model.uri", "Hugging Face id"),
    Refusal(
        "a uri of an unknown scheme", {"model": {"uri": "s3://bucket/model"}}, "spec.model.uri", "pvc://claim/path"
    ),
    Refusal(
        "a model for embeddings", {"model": {"uri": "Qwen/Qwen3-Embedding-0.6B"}}, "spec.model.uri", "--runner=generate"
    ),
    Refusal("a model for ranking", {"model": {"uri": "BAAI/bge-reranker-v2-m3"}}, "spec.model.uri", "without Holdfast"),
    Refusal("a model for speech", {"model": {"uri": "openai/whisper-large-v3"}}, "spec.model.uri", "speech"),
    Refusal("a relative path", {"model": {"uri": "models/a/b"}}, "spec.model.uri", "absolute path"),
    Refusal("a uri with a space", {"model": {"uri": "/models/my model"}}, "spec.model.uri", "absolute path"),
    Refusal("an oci uri without repository", {"model": {"uri": "oci://registry"}}, "spec.model.uri", "oci://registry/"),
    Refusal(
        "a claim of an impossible name", {"model": {"uri": "pvc://My_Claim/x"}}, "spec.model.uri", "pvc://claim/path"
    ),
    Refusal(
        "a context of zero tokens",
        {"model": {"maxModelLen": 0}},
        "spec.model.maxModelLen",
        "greater than or equal to 1",
    ),
    Refusal("two caches", {"model": {"cache": {"pvc": "a", "emptyDir": {}}}}, "spec.model.cache", "remove the others"),
    Refusal(
        "a relative host path", {"model": {"cache": {"hostPath": "x"}}}, "spec.model.cache.hostPath", "absolute path"
    ),
    Refusal(
        "a size limit that is no quantity",
        {"model": {"cache": {"emptyDir": {"sizeLimit": "big"}}}},
        "spec.model.cache.emptyDir.sizeLimit",
        "such as 200Gi",
    ),
    Refusal(
        "a token reference without key",
        {"model": {"tokenSecretRef": {"name": "hf"}}},
        "spec.model.tokenSecretRef.key",
        "add it",
        "Required value",
    ),
    Refusal(
        "a token Secret of an impossible name",
        {"model": {"tokenSecretRef": {"name": "My Secret", "key": "token"}}},
        "spec.model.tokenSecretRef.name",
        "name of a Kubernetes object",
    ),
)
_HARDWARE = {"memoryGiB": 192, "bandwidthGBs": 5300, "teraflops": 1307}
_ACCELERATORS = (
    Refusal(
        "hardware without its bandwidth",
        _accelerators({**H100, "hardware": {"memoryGiB": 192, "teraflops": 1307}}),
        "spec.accelerators[0].hardware.bandwidthGBs",
        "add it",
        "Required value",
    ),
    Refusal(
        "hardware without memory",
        _accelerators({**H100, "hardware": {**_HARDWARE, "memoryGiB": 0}}),
        "spec.accelerators[0].hardware.memoryGiB",
        "greater than or equal to 1",
    ),
    Refusal(
        "a bandwidth in TB/s",
        _accelerators({**H100, "hardware": {**_HARDWARE, "bandwidthGBs": 5.3}}),
        "spec.accelerators[0].hardware.bandwidthGBs",
        "greater than or equal to 10",
    ),
    Refusal(
        "arithmetic in FLOPS",
        _accelerators({**H100, "hardware": {**_HARDWARE, "teraflops": 1.307e15}}),
        "spec.accelerators[0].hardware.teraflops",
        "less than or equal to 1000000",
        "less than or equal to",
    ),
    Refusal("no accelerators", {"accelerators": []}, "spec.accelerators", "at least 1 item"),
    Refusal("missing accelerators", {"accelerators": None}, "spec.accelerators", "is required without target: add it"),
    Refusal(
        "more than sixteen accelerators",
        _accelerators(*({"name": f"a{i}"} for i in range(17))),
        "spec.accelerators",
        "at most 16",
        "must have at most 16 items",
    ),
    Refusal(
        "two accelerators of one name", _accelerators(H100, H100), "spec.accelerators", "rename or remove the duplicate"
    ),
    Refusal("an accelerator in capitals", _accelerators({"name": "H100"}), "spec.accelerators[0].name", "such as h100"),
    Refusal(
        "an accelerator without name",
        _accelerators({"count": 1}),
        "spec.accelerators[0].name",
        "add it",
        "Required value",
    ),
    Refusal(
        "zero GPUs", _accelerators({**H100, "count": 0}), "spec.accelerators[0].count", "greater than or equal to 1"
    ),
    Refusal("half a GPU", _accelerators({**H100, "count": 0.5}), "spec.accelerators[0].count", "integer"),
    Refusal(
        "a resource with a space",
        _accelerators({**H100, "resource": "a gpu"}),
        "spec.accelerators[0].resource",
        "such as nvidia.com/gpu",
    ),
    Refusal(
        "a negative cost",
        _accelerators({**H100, "costPerHour": -1}),
        "spec.accelerators[0].costPerHour",
        "greater than or equal to 0",
    ),
    Refusal(
        "costs for some accelerators only",
        _accelerators({**H100, "costPerHour": 3}, L40S),
        "spec.accelerators",
        "add the missing prices or remove the others",
    ),
    Refusal(
        "an image with a space",
        _accelerators({**H100, "image": "my image"}),
        "spec.accelerators[0].image",
        "without spaces",
    ),
    Refusal(
        "a count that is not the product",
        _accelerators({**H100, "count": 4, "parallelism": {"tensor": 4, "data": 2}}),
        "spec.accelerators[0].count",
        "remove count",
    ),
    Refusal(
        "a count of one beside a pipeline",
        _accelerators({**H100, "count": 1, "parallelism": {"pipeline": 2}}),
        "spec.accelerators[0].count",
        "parallelism.tensor x pipeline x data",
    ),
    Refusal(
        "a pipeline of no stage",
        _accelerators({**H100, "parallelism": {"pipeline": 0}}),
        "spec.accelerators[0].parallelism.pipeline",
        "greater than or equal to 1",
    ),
    Refusal(
        "half an engine",
        _accelerators({**H100, "parallelism": {"data": 1.5}}),
        "spec.accelerators[0].parallelism.data",
        "valid integer",
        "integer",
    ),
    Refusal(
        "another way of sharing",
        _accelerators({**H100, "parallelism": {"expert": 2}}),
        "spec.accelerators[0].parallelism.expert",
        "remove it",
        "unknown field",
    ),
    Refusal(
        "more GPUs than a node has",
        _accelerators({**H100, "parallelism": {"tensor": 64, "pipeline": 2}}),
        "spec.accelerators[0].parallelism",
        "lower one of them",
    ),
    Refusal(
        "nodes with different numbers of GPUs",
        _accelerators({**H100, "count": 8, "nodes": 3}),
        "spec.accelerators[0].nodes",
        "change count or nodes",
    ),
    Refusal(
        "more nodes than GPUs",
        _accelerators({**H100, "nodes": 2}),
        "spec.accelerators[0].nodes",
        "change count or nodes",
    ),
    Refusal(
        "a product that does not fill its nodes",
        _accelerators({**H100, "nodes": 4, "parallelism": {"tensor": 3, "pipeline": 2}}),
        "spec.accelerators[0].nodes",
        "change count or nodes",
    ),
    Refusal(
        "data-parallel engines on several nodes",
        _accelerators({**H100, "nodes": 2, "parallelism": {"tensor": 8, "data": 2}}),
        "spec.accelerators[0].nodes",
        "set tensor and pipeline",
    ),
    Refusal(
        "groups whose Service would be that of a router",
        _accelerators({**H100, "name": "replicas", "count": 16, "nodes": 2}),
        "spec.accelerators[0].name",
        "rename it",
    ),
    Refusal("no node", _accelerators({**H100, "nodes": 0}), "spec.accelerators[0].nodes", "greater than or equal to 1"),
    Refusal(
        "half a node",
        _accelerators({**H100, "nodes": 1.5}),
        "spec.accelerators[0].nodes",
        "valid integer",
        "integer",
    ),
    Refusal(
        "a budget for fewer GPUs than a replica has",
        _accelerators({**H100, "costPerHour": 2, "parallelism": {"tensor": 2, "data": 2}})
        | {"budget": {"maxCostPerHour": 7}},
        "spec.accelerators",
        "raise a max or the budget",
    ),
    Refusal(
        "a flag of a field in an accelerator's arguments",
        _accelerators({**H100, "args": ["--max-num-seqs=4"]}),
        "spec.accelerators[0].args",
        "batching.maxNumSeqs",
    ),
    Refusal(
        "an owned field in an accelerator's template",
        _accelerators({**H100, "template": {"spec": {"terminationGracePeriodSeconds": 5}}}),
        "spec.accelerators[0].template.spec.terminationGracePeriodSeconds",
        "set engine.shutdownTimeout",
    ),
)
_SIZES = (
    Refusal("min above max", {"scaling": {"min": 5, "max": 2}}, "spec.scaling.min", "lower min or raise max"),
    Refusal("min above the default max", {"scaling": {"min": 11}}, "spec.scaling.min", "lower min or raise max"),
    Refusal("a negative min", {"scaling": {"min": -1}}, "spec.scaling.min", "greater than or equal to 0"),
    Refusal(
        "zero replicas behind TLS",
        {"scaling": {"min": 0}, "engine": {"tlsSecretRef": {"name": "tls"}}},
        "spec.scaling",
        "terminate TLS at a gateway",
    ),
    Refusal(
        "zero replicas of an accelerator with the activator's name",
        {**_accelerators({**H100, "name": "activator"}), "scaling": {"min": 0}},
        "spec.accelerators",
        "rename it",
    ),
    Refusal(
        "fewer replicas on each accelerator than there must be",
        {**_accelerators({**H100, "max": 2}, {**L40S, "max": 2}), "scaling": {"min": 3}},
        "spec.accelerators",
        "raise a max or the budget, or lower min",
    ),
    Refusal(
        "no replica on the only accelerator",
        _accelerators({**H100, "max": 0}),
        "spec.accelerators",
        "raise a max or the budget, or lower min",
    ),
    Refusal(
        "no replica on the only accelerator of a service that may rest",
        {**_accelerators({**H100, "max": 0}), "scaling": {"min": 0}},
        "spec.accelerators",
        "raise a max or the budget, or lower min",
    ),
    Refusal(
        "more replicas off spot than max",
        {"scaling": {"minOnDemand": 11}},
        "spec.scaling.minOnDemand",
        "lower minOnDemand or raise max",
    ),
    Refusal(
        "replicas off spot without a regular accelerator",
        {**_accelerators({**H100, "spot": True}), "scaling": {"minOnDemand": 1}},
        "spec.scaling",
        "list one",
    ),
    Refusal(
        "more replicas off spot than the regular accelerator may have",
        {**_accelerators({**H100, "spot": True}, {**L40S, "max": 1}), "scaling": {"minOnDemand": 2}},
        "spec.scaling",
        "raise its max",
    ),
    Refusal(
        "more replicas off spot than the budget pays for",
        {
            **_accelerators({**H100, "spot": True, "costPerHour": 1}, {**L40S, "costPerHour": 3}),
            "scaling": {"minOnDemand": 2},
            "budget": {"maxCostPerHour": 5},
        },
        "spec.scaling",
        "raise its max or the budget",
    ),
    Refusal(
        "a negative number of replicas off spot",
        {"scaling": {"minOnDemand": -1}},
        "spec.scaling.minOnDemand",
        "greater than or equal to 0",
    ),
    Refusal("spot as a word", _accelerators({**H100, "spot": "yes"}), "spec.accelerators[0].spot", "boolean"),
    Refusal("a max of zero", {"scaling": {"max": 0}}, "spec.scaling.max", "greater than or equal to 1"),
    Refusal("replicas above max", {"replicas": 11}, "spec.replicas", "remove it to resume"),
    Refusal(
        "more replicas than any accelerator may have",
        {**_accelerators({**H100, "max": 1}, {**L40S, "max": 2}), "replicas": 3},
        "spec.replicas",
        "lower replicas",
    ),
    Refusal(
        "more replicas than the budget pays for",
        {**_accelerators({**H100, "costPerHour": 3, "count": 2}), "replicas": 2, "budget": {"maxCostPerHour": 11}},
        "spec.replicas",
        "lower replicas",
    ),
    Refusal("replicas below min", {"replicas": 1, "scaling": {"min": 2}}, "spec.replicas", "remove it to resume"),
    Refusal("negative replicas", {"replicas": -1}, "spec.replicas", "greater than or equal to 0"),
    Refusal("Fixed batching without values", {"batching": {"mode": "Fixed"}}, "spec.batching", "set both"),
    Refusal(
        "Fixed batching with one value", {"batching": {"mode": "Fixed", "maxNumSeqs": 8}}, "spec.batching", "set both"
    ),
    Refusal(
        "fewer batched tokens than sequences",
        {"batching": {"maxNumSeqs": 64, "maxNumBatchedTokens": 63}},
        "spec.batching.maxNumBatchedTokens",
        "raise it or lower maxNumSeqs",
    ),
    Refusal(
        "no sequence at all",
        {"batching": {"maxNumSeqs": 0, "maxNumBatchedTokens": 1}},
        "spec.batching.maxNumSeqs",
        "greater than or equal to 1",
    ),
    Refusal("an unknown batching mode", {"batching": {"mode": "Magic"}}, "spec.batching.mode", "Fixed"),
    Refusal("an unknown way with overload", {"overload": "Drop"}, "spec.overload", "Reject"),
    Refusal("an unknown mode", {"mode": "Manual"}, "spec.mode", "Recommend"),
    Refusal(
        "a budget without costs",
        {"budget": {"maxCostPerHour": 9}},
        "spec.budget",
        "add the prices or remove the budget",
    ),
    Refusal(
        "a budget below the minimum",
        {
            **_accelerators({**H100, "costPerHour": 3, "count": 2}),
            "scaling": {"min": 2, "max": 4},
            "budget": {"maxCostPerHour": 11.9},
        },
        "spec.accelerators",
        "raise a max or the budget, or lower min",
    ),
    Refusal(
        "a budget that pays only for an accelerator that may have no replica",
        {
            **_accelerators({**H100, "costPerHour": 0.1, "max": 0}, {**L40S, "costPerHour": 2}),
            "scaling": {"min": 0},
            "budget": {"maxCostPerHour": 1},
        },
        "spec.accelerators",
        "raise a max or the budget, or lower min",
    ),
    Refusal(
        "a budget that pays for a floor off spot and not for all beside it",
        {
            **_accelerators(
                {**H100, "name": "spot", "spot": True, "costPerHour": 1}, {**H100, "costPerHour": 3, "max": 2}
            ),
            "scaling": {"min": 4, "minOnDemand": 2},
            "budget": {"maxCostPerHour": 7.9},
        },
        "spec.accelerators",
        "raise a max or the budget, or lower min",
    ),
    Refusal(
        "a spot accelerator that no other is like, with a floor off spot",
        {
            **_accelerators({**H100, "name": "spot", "spot": True, "count": 2}, {**H100, "max": 2}),
            "scaling": {"min": 3, "minOnDemand": 1},
        },
        "spec.accelerators",
        "raise a max or the budget, or lower min",
    ),
    Refusal(
        "a budget of nothing",
        {**_accelerators({**H100, "costPerHour": 3}), "budget": {"maxCostPerHour": 0}},
        "spec.budget.maxCostPerHour",
        "greater than 0",
    ),
    Refusal("a negative surge", {"rollout": {"maxSurge": -1}}, "spec.rollout.maxSurge", "from 0 to 1000"),
    Refusal("a surge beyond every cluster", {"rollout": {"maxSurge": 1001}}, "spec.rollout.maxSurge", "from 0 to 1000"),
    Refusal("a surge in percent", {"rollout": {"maxSurge": "25%"}}, "spec.rollout.maxSurge", "Auto or a number"),
    Refusal("a surge as a string", {"rollout": {"maxSurge": "1"}}, "spec.rollout.maxSurge", "without quotes"),
)
OFFICE: dict[str, Any] = {
    "name": "office", "timezone": "Europe/Berlin", "start": "08:00", "end": "18:00", "min": 3,
}  # fmt: skip


def _schedules(*items: Mapping[str, Any], **scaling: Any) -> dict[str, Any]:
    """Schedules, each with what an item leaves out; None removes."""
    whole = [{**OFFICE, **item} for item in items]
    return {"scaling": {**scaling, "schedules": [{k: v for k, v in each.items() if v is not None} for each in whole]}}


_SCHEDULES = (
    Refusal(
        "fewer replicas on each accelerator than a schedule asks for",
        {**_accelerators({**H100, "max": 2}, {**L40S, "max": 3}), **_schedules({"min": 4})},
        "spec.accelerators",
        "raise a max or the budget, or lower the schedule's min",
    ),
    Refusal(
        "two schedules of one name",
        _schedules({}, {"start": "20:00"}),
        "spec.scaling.schedules",
        "rename or remove the duplicate",
    ),
    Refusal("a schedule without name", _schedules({"name": None}), "schedules[0].name", "add it", "Required value"),
    Refusal("a schedule in capitals", _schedules({"name": "Office"}), "schedules[0].name", "such as office-hours"),
    Refusal("an empty name", _schedules({"name": ""}), "schedules[0].name", "such as office-hours"),
    Refusal("no time zone", _schedules({"timezone": None}), "schedules[0].timezone", "add it", "Required value"),
    Refusal("an empty time zone", _schedules({"timezone": ""}), "schedules[0].timezone", "such as Europe/Berlin"),
    Refusal("a path as time zone", _schedules({"timezone": "../etc"}), "schedules[0].timezone", "Europe/Berlin"),
    Refusal("an absolute time zone", _schedules({"timezone": "/UTC"}), "schedules[0].timezone", "Europe/Berlin"),
    Refusal("an offset as time zone", _schedules({"timezone": "+02:00"}), "schedules[0].timezone", "Europe/Berlin"),
    Refusal("a time zone that ends so", _schedules({"timezone": "UTC\n"}), "schedules[0].timezone", "or UTC"),
    Refusal("no start", _schedules({"start": None}), "schedules[0].start", "add it", "Required value"),
    Refusal("no end", _schedules({"end": None}), "schedules[0].end", "add it", "Required value"),
    Refusal("a start without minutes", _schedules({"start": "8"}), "schedules[0].start", "such as 08:00"),
    Refusal("a start of one digit", _schedules({"start": "8:00"}), "schedules[0].start", "such as 08:00"),
    Refusal("a start with seconds", _schedules({"start": "08:00:00"}), "schedules[0].start", "such as 08:00"),
    Refusal("a start as a number", _schedules({"start": 800}), "schedules[0].start", "string"),
    Refusal("a start at 24:00", _schedules({"start": "24:00"}), "schedules[0].start", "to 23:59"),
    Refusal("an end at 24:01", _schedules({"end": "24:01"}), "schedules[0].end", "to 24:00"),
    Refusal("an end at 60 minutes", _schedules({"end": "18:60"}), "schedules[0].end", "such as 18:00"),
    Refusal("an end at noon in words", _schedules({"end": "noon"}), "schedules[0].end", "such as 18:00"),
    Refusal("an end at start", _schedules({"end": "08:00"}), "schedules[0].end", "change one of them"),
    Refusal("no day", _schedules({"days": []}), "schedules[0].days", "at least 1 item"),
    Refusal("a day twice", _schedules({"days": ["Mon", "Mon"]}), "schedules[0].days", "remove the duplicate"),
    Refusal("a day in full", _schedules({"days": ["Monday"]}), "schedules[0].days[0]", "Mon"),
    Refusal("a day in small letters", _schedules({"days": ["mon"]}), "schedules[0].days[0]", "Mon"),
    Refusal("days as one string", _schedules({"days": "Mon"}), "schedules[0].days", "valid tuple", "array"),
    Refusal("a floor without size", _schedules({"min": None}), "schedules[0].min", "add it", "Required value"),
    Refusal("a floor of nothing", _schedules({"min": 0}), "schedules[0].min", "greater than or equal to 1"),
    Refusal("half a replica", _schedules({"min": 1.5}), "schedules[0].min", "integer"),
    Refusal("a floor above max", _schedules({}, max=2), "spec.scaling.schedules", "raise scaling.max"),
    Refusal("a floor above the default max", _schedules({"min": 11}), "spec.scaling.schedules", "raise scaling.max"),
    Refusal("an unknown field of a schedule", _schedules({"cron": "0 8 * * *"}), "cron", "spelling", "unknown field"),
    Refusal(
        "more than sixteen schedules",
        _schedules(*({"name": f"s{i}"} for i in range(17))),
        "spec.scaling.schedules",
        "at most 16",
        "must have at most 16 items",
    ),
    Refusal(
        "a budget below the floor of a schedule",
        {
            **_accelerators({**H100, "costPerHour": 3}, {**L40S, "costPerHour": 2.5}),
            **_schedules({}, min=1, max=4),
            "budget": {"maxCostPerHour": 7.4},
        },
        "spec.accelerators",
        "lower the schedule's min",
    ),
)
_ENGINE = (
    Refusal("an owned flag", {"engine": {"args": ["--port", "9000"]}}, "spec.engine.args", "always 8000"),
    Refusal(
        "an owned flag with underscores", {"engine": {"args": ["--max_num_seqs=8"]}}, "spec.engine.args", "batching."
    ),
    Refusal("a model in the arguments", {"engine": {"args": ["--model=x"]}}, "spec.engine.args", "model.uri"),
    Refusal("a revision in the arguments", {"engine": {"args": ["--revision=main"]}}, "engine.args", "model.revision"),
    Refusal("a context length there", {"engine": {"args": ["--max-model-len", "9"]}}, "engine.args", "maxModelLen"),
    Refusal("a data type there", {"engine": {"args": ["--dtype=half"]}}, "spec.engine.args", "model.dtype"),
    Refusal("a quantization there", {"engine": {"args": ["--quantization=fp8"]}}, "engine.args", "model.quantization"),
    Refusal("a quantization in short", {"engine": {"args": ["-q", "fp8"]}}, "engine.args", "model.quantization"),
    Refusal("a quantization in shortest", {"engine": {"args": ["-qfp8"]}}, "engine.args", "model.quantization"),
    Refusal("an owned flag cut short", {"engine": {"args": ["--max-num-seq=8"]}}, "spec.engine.args", "batching."),
    Refusal(
        "another one", {"engine": {"args": ["--tensor_parallel", "8"]}}, "spec.engine.args", "accelerators[].count"
    ),
    Refusal("a letter of two", {"engine": {"args": ["-t", "1"]}}, "spec.engine.args", "accelerators[].count"),
    Refusal("a certificate there", {"engine": {"args": ["--ssl_keyfile=/k"]}}, "engine.args", "engine.tlsSecretRef"),
    Refusal("a pipeline", {"engine": {"args": ["-pp=2"]}}, "spec.engine.args", "accelerators[].parallelism.pipeline"),
    Refusal(
        "a pipeline cut short", {"engine": {"args": ["--pipeline_par", "2"]}}, "engine.args", "parallelism.pipeline"
    ),
    Refusal("engines of data", {"engine": {"args": ["-dp", "2"]}}, "engine.args", "accelerators[].parallelism.data"),
    Refusal("engines of data in long", {"engine": {"args": ["--data_parallel_size=2"]}}, "engine.args", "lelism.data"),
    Refusal(
        "a pipeline on one accelerator",
        _accelerators({**H100, "args": ["--pipeline-parallel-size=2"]}),
        "spec.accelerators[0].args",
        "accelerators[].parallelism.pipeline",
    ),
    Refusal("nodes", {"engine": {"args": ["--nnodes=2"]}}, "spec.engine.args", "accelerators[].nodes does"),
    Refusal("nodes in short", {"engine": {"args": ["-n2"]}}, "spec.engine.args", "accelerators[].nodes does"),
    Refusal(
        "the rank of a node", {"engine": {"args": ["--node_rank", "1"]}}, "engine.args", "accelerators[].nodes does"
    ),
    Refusal("one engine of several", {"engine": {"args": ["-dpn=1"]}}, "spec.engine.args", "accelerators[].nodes does"),
    Refusal(
        "a server per engine", {"engine": {"args": ["--data-parallel-hyb"]}}, "engine.args", "accelerators[].nodes does"
    ),
    # D11: llm-d/llm-d-autoscaling#250, vllm-project/vllm#22454
    Refusal(
        "a half that prefills",
        {"engine": {"args": ["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}']}},
        "spec.engine.args",
        "one half of an engine",
    ),
    Refusal(
        "a half that decodes",
        {"engine": {"args": ['--kv_transfer_config={"kv_role": "kv_consumer"}']}},
        "engine.args",
        "one half of an engine",
    ),
    Refusal(
        "a half by one key",
        {"engine": {"args": ["--kv-transfer-config.kv_role=kv_producer"]}},
        "engine.args",
        "one half of an engine",
    ),
    Refusal(
        "a half by one key in two words",
        {"engine": {"args": ["--kv-tr.kv_role", "kv_consumer"]}},
        "engine.args",
        "one half of an engine",
    ),
    Refusal(
        "a half in a list of connectors",
        {"engine": {"args": ['--kv-transfer-config={"kv_role":"kv_both","x":[{"kv_role":"kv_producer"}]}']}},
        "engine.args",
        "one half of an engine",
    ),
    Refusal(
        "an encoder without a decoder",
        {"engine": {"args": ['--ec-transfer-config={"ec_role":"ec_producer"}']}},
        "engine.args",
        "one half of an engine",
    ),
    Refusal(
        "a half on one accelerator",
        _accelerators({**H100, "args": ["--kv-transfer-config.kv_role=kv_consumer"]}),
        "spec.accelerators[0].args",
        "one half of an engine",
    ),
    Refusal("gRPC", {"engine": {"args": ["--grpc"]}}, "spec.engine.args", "engines serve HTTP"),
    # C07: kserve/kserve#4025, ROCm/rocm-cli#150
    Refusal("a pooling engine", {"engine": {"args": ["--runner=pooling"]}}, "spec.engine.args", "embeddings, scores"),
    Refusal("one in two words", {"engine": {"args": ["--runner", "pooling"]}}, "engine.args", "generates no text"),
    Refusal("one cut short", {"engine": {"args": ["--runn=pooling"]}}, "spec.engine.args", "generates no text"),
    Refusal("an older spelling", {"engine": {"args": ["--task", "embed"]}}, "spec.engine.args", "generates no text"),
    Refusal("a conversion", {"engine": {"args": ["--convert=classify"]}}, "spec.engine.args", "generates no text"),
    Refusal(
        "a pooling engine on one accelerator",
        _accelerators({**H100, "args": ["--runner=pooling"]}),
        "spec.accelerators[0].args",
        "generates no text",
    ),
    # C08: vllm-project/vllm#44280, SemiAnalysisAI/InferenceX#1634
    Refusal(
        "a frontend in another language",
        {"engine": {"env": [{"name": "VLLM_USE_RUST_FRONTEND", "value": "1"}]}},
        "spec.engine.env[0]",
        "Python server",
    ),
    Refusal(
        "one whose value lies elsewhere",
        {
            "engine": {
                "env": [{"name": "VLLM_USE_RUST_FRONTEND", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}]
            }
        },
        "spec.engine.env[0]",
        "set engine.frontEnd: Rust",
    ),
    Refusal(
        "one on one accelerator",
        _accelerators({**H100, "env": [{"name": "VLLM_USE_RUST_FRONTEND", "value": "1"}]}),
        "spec.accelerators[0].env[0]",
        "Python server",
    ),
    Refusal(
        "refusals by a front end that has none",
        {"engine": {"frontEnd": "Rust"}, "overload": "Reject"},
        "spec.engine.frontEnd",
        "remove overload Reject, or set frontEnd: Python",
    ),
    Refusal(
        "a certificate that the front end does not read anew",
        {"engine": {"frontEnd": "Rust", "tlsSecretRef": {"name": "a"}}},
        "spec.engine.frontEnd",
        "remove engine.tlsSecretRef",
    ),
    *(
        Refusal(f"classes without the plugin, {more}", _classes(PREMIUM, **more), "spec.slo.classes", remedy)
        for more, remedy in (
            ({"engine": {"plugin": "Disabled"}}, "remove slo.classes, or engine.plugin Disabled"),
            ({"engine": {"frontEnd": "Rust"}}, "remove slo.classes, or engine.frontEnd Rust"),
        )
    ),
    *(
        Refusal(f"a class of the name {name}", _classes({"name": name}), "spec.slo.classes[0].name", "DNS label")
        for name in ("Premium", "a,b", "premium.", "../a", "a_b")
    ),
    Refusal("a class with a long name", _classes({"name": "a" * 64}), "spec.slo.classes[0].name", "63", "63"),
    Refusal(
        "two classes of one name", _classes(PREMIUM, PREMIUM), "spec.slo.classes", "rename or remove", "Duplicate value"
    ),
    Refusal(
        "33 classes", _classes(*({"name": f"c{number}"} for number in range(33))), "spec.slo.classes", "32", "must have"
    ),
    *(
        Refusal(
            f"an adapter at {uri or 'no place'}", _adapters({"name": "sql", "uri": uri}), f"{ADAPTERS}[0].uri", remedy
        )
        for uri, remedy in (
            *((uri, "write org/name@COMMIT") for uri in ("org/sql", "org/sql@main", "org/sql@", "org/sql@" + "A" * 40)),
            *((uri, "remove ..") for uri in ("pvc://adapters/../weights", "/..", "/adapters/..", "pvc://adapters/..")),
            *((uri, "pvc://claim/path") for uri in ("", "sql", "s3://bucket/sql", "oci://a/b:1", "pvc://", "a/b/c")),
        )
    ),
    Refusal(
        "an adapter without a place", _adapters({"name": "sql"}), f"{ADAPTERS}[0].uri", "required", "Required value"
    ),
    *(
        Refusal(f"an adapter of the name {name}", _adapters({**SQL, "name": name}), f"{ADAPTERS}[0].name", "DNS label")
        for name in ("SQL", "org/sql", "sql.", "a_b")
    ),
    Refusal("two adapters of one name", _adapters(SQL, SQL), ADAPTERS, "rename or remove", "Duplicate value"),
    Refusal("no adapters", _adapters(), ADAPTERS, "at least 1", "at least 1"),
    Refusal(
        "65 adapters", _adapters(*({**SQL, "name": f"a{number}"} for number in range(65))), ADAPTERS, "64", "must have"
    ),
    Refusal(
        "an adapter of the model's name",
        {"model": {"servedName": "sql", "lora": {"adapters": [SQL]}}},
        ADAPTERS,
        "rename the adapter",
    ),
    Refusal(
        "an adapter of the uri's name",
        {"model": {"uri": "sql", "lora": {"adapters": [SQL]}}},
        ADAPTERS,
        "set servedName",
    ),
    Refusal(
        "an adapter of a class's name",
        {**_adapters(SQL), **_classes({"name": "sql"})},
        ADAPTERS,
        "both are values of one label",
    ),
    Refusal(
        "33 classes and adapters",
        {
            **_adapters(*({**TIGHT_SQL, "name": f"a{number}"} for number in range(17))),
            **_classes(*({"name": f"c{number}"} for number in range(16))),
        },
        ADAPTERS,
        "at most 32 together",
    ),
    Refusal(
        "an adapter's objectives without the plugin",
        {**_adapters(TIGHT_SQL), "engine": {"plugin": "Disabled"}},
        ADAPTERS,
        "remove slo from the adapter",
    ),
    Refusal(
        "adapters behind the Rust front end",
        {**_adapters(SQL), "engine": {"frontEnd": "Rust"}},
        "spec.model.lora",
        "remove model.lora, or engine.frontEnd Rust",
    ),
    *(
        Refusal(f"adapters and {argument}", {**_adapters(SQL), **more}, "spec.model.lora", "remove --enable-lora")
        for argument, more in (
            ("--enable-lora", {"engine": {"args": ["--enable-lora"]}}),
            ("--max_loras=2", {"engine": {"args": ["--max_loras=2"]}}),
            ("--lora-modules", _accelerators({**H100, "args": ["--lora-modules", "a=/a"]})),
        )
    ),
    *(
        Refusal(f"a rank of {rank}", _adapters(SQL, maxRank=rank), "spec.model.lora.maxRank", "next higher one")
        for rank in (0, -8, 1, 24, 1024)
    ),
    *(
        Refusal(
            f"{room} adapters in the GPU", _adapters(SQL, maxLoaded=room), "spec.model.lora.maxLoaded", remedy, remedy
        )
        for room, remedy in ((0, "greater than or equal to 1"), (65, "less than or equal to 64"))
    ),
    Refusal(
        "an adapter whose first token may come after its last",
        _adapters({**SQL, "slo": {"ttft": "30s", "e2e": "10s"}}),
        f"{ADAPTERS}[0].slo.e2e",
        "raise e2e, lower ttft",
    ),
    Refusal(
        "an adapter without a first token",
        _adapters({**SQL, "slo": {"ttft": "0s"}}),
        f"{ADAPTERS}[0].slo.ttft",
        DURATION,
    ),
    *(
        Refusal(
            f"batch with {name}",
            _classes({"name": "night", "kind": "Batch", name: value}),
            f"spec.slo.classes[0].{name}",
            f"remove {name}, or kind",
        )
        for name, value in (
            *(("ttft", "1h"), ("tpot", "1s"), ("e2e", "1d"), ("objective", "99%")),
            *(("minShare", "5%"), ("maxShare", "5%")),
        )
    ),
    *(
        Refusal(f"a share of {value}", _classes({"name": "a", "minShare": value}), "spec.slo.classes[0].minShare", "5%")
        for value in ("51%", "-1%", "5", "NaN%", "1e9%", "%")
    ),
    Refusal("more than all", _classes({"name": "a", "maxShare": "101%"}), "spec.slo.classes[0].maxShare", "to 100%"),
    Refusal(
        "a class that is lifted beyond its share",
        _classes({"name": "a", "maxShare": "20%", "priority": -10}),
        "spec.slo.classes[0].maxShare",
        "remove maxShare, or priority",
    ),
    Refusal(
        "an objective of batch that has a time to be done in",
        _classes({"name": "night", "kind": "Batch", "finishWithin": "8h", "objective": "99%"}),
        "spec.slo.classes[0].objective",
        "do not count which batch requests are done in time",
    ),
    *(
        Refusal(
            f"a time to be done in for {each.get('kind', 'no kind')}",
            _classes({"name": "a", "finishWithin": "8h", **each}),
            "spec.slo.classes[0].finishWithin",
            "set kind: Batch",
        )
        for each in ({}, {"kind": "Interactive"})
    ),
    *(
        Refusal(
            f"batch to be done within {value}",
            _classes({"name": "night", "kind": "Batch", "finishWithin": value}),
            "spec.slo.classes[0].finishWithin",
            "from 1m to 7d",
        )
        for value in ("59s", "8d", "0s", "-1h", "8", "NaN", "Infm")
    ),
    Refusal("a kind of no class", _classes({"name": "a", "kind": "Nightly"}), "spec.slo.classes[0].kind", "Batch"),
    Refusal(
        "batch that only a body names",
        {"slo": {"claim": "Body", "classes": [PREMIUM, {"name": "night", "kind": "Batch"}]}},
        "spec.slo.claim",
        "remove claim, or kind",
    ),
    Refusal("a claim of no class", {"slo": {"claim": "Header"}}, "spec.slo.claim", "add one to slo.classes"),
    Refusal("a claim by magic", {"slo": {"claim": "Cookie", "classes": [PREMIUM]}}, "spec.slo.claim", "Header"),
    Refusal(
        "a class whose first token may come after its last",
        _classes({"name": "bulk", "ttft": "30s", "e2e": "10s"}),
        "spec.slo.classes[0].e2e",
        "raise e2e, lower ttft",
    ),
    Refusal(
        "a class in another unit",
        _classes({"name": "a", "ttft": "1s", "e2e": "500us"}),
        "spec.slo.classes[0].e2e",
        DURATION,
    ),
    Refusal(
        "a class without a first token", _classes({"name": "a", "ttft": "0s"}), "spec.slo.classes[0].ttft", DURATION
    ),
    Refusal(
        "a class above all others", _classes({"name": "a", "priority": 1001}), "spec.slo.classes[0].priority", "1000"
    ),
    *(
        Refusal(
            f"a class of which {objective} must be good",
            _classes({"name": "a", "objective": objective}),
            "spec.slo.classes[0].objective",
            "above 50% and below 100%",
        )
        for objective in ("100%", "50%", "0%", "-1%", "101%", "1e2%", "nan%", "0.999")
    ),
    Refusal(
        "a class with a field that is not there yet",
        _classes({"name": "a", "weight": "10%"}),
        "weight",
        "spelling",
        "unknown field",
    ),
    Refusal("a front end that nobody knows", {"engine": {"frontEnd": "Go"}}, "spec.engine.frontEnd", "Rust"),
    Refusal(
        "engines of data in the environment",
        {"engine": {"env": [{"name": "VLLM_DP_SIZE", "value": "2"}]}},
        "spec.engine.env[0]",
        "accelerators[].parallelism.data",
    ),
    Refusal("arguments as one string", {"engine": {"args": "--seed 1"}}, "spec.engine.args", "valid tuple", "array"),
    Refusal(
        "a variable without name", {"engine": {"env": [{"value": "x"}]}}, "spec.engine.env[0]", "name", "Required value"
    ),
    Refusal(
        "a plugin mode that YAML reads as false",
        {"engine": {"plugin": False}},
        "spec.engine.plugin",
        "'Auto' or 'Disabled'; YAML reads On, Off, Yes and No without quotes as true or false",
        "must be of type",
    ),
    Refusal(
        "a price with a currency",
        _accelerators({**H100, "costPerHour": "$2.50"}),
        "spec.accelerators[0].costPerHour",
        "must be a valid number: write it without quotes, currency and unit, such as 2.5",
        "must be of type number",
    ),
    Refusal("an unknown plugin mode", {"engine": {"plugin": "On"}}, "spec.engine.plugin", "Disabled"),
    Refusal("an empty plugin revision", {"engine": {"pluginRevision": ""}}, "spec.engine.pluginRevision", "at most 63"),
    Refusal(
        "a long plugin revision", {"engine": {"pluginRevision": "r" * 64}}, "spec.engine.pluginRevision", "at most 63"
    ),
    Refusal(
        "a negative plugin revision", {"engine": {"pluginRevision": -1}}, "spec.engine.pluginRevision", "at least 0"
    ),
    Refusal("an empty image", {"engine": {"image": ""}}, "spec.engine.image", "image must be"),
    Refusal("no time to start", {"engine": {"startupTimeout": "9s"}}, "spec.engine.startupTimeout", "from 10s to 1d"),
    Refusal("two days to start", {"engine": {"startupTimeout": "2d"}}, "spec.engine.startupTimeout", "from 10s to 1d"),
    Refusal(
        "a time to start that is none", {"engine": {"startupTimeout": "NaN"}}, "spec.engine.startupTimeout", DURATION
    ),
    Refusal("no time to finish", {"engine": {"shutdownTimeout": "0s"}}, "spec.engine.shutdownTimeout", "from 1s to 1h"),
    Refusal(
        "an unparsable time to finish", {"engine": {"shutdownTimeout": "long"}}, "spec.engine.shutdownTimeout", DURATION
    ),
)
_TEMPLATE = (
    Refusal("a command", _container(command=["x"]), "spec.template.spec.containers", "command of the container vllm"),
    Refusal(
        "a frontend in another language in a template",
        _container(env=[{"name": "A"}, {"name": "VLLM_USE_RUST_FRONTEND", "value": "1"}]),
        "spec.template.spec.containers",
        "Python server",
    ),
    Refusal(
        "engines of data in a template",
        _container(env=[{"name": "VLLM_DP_RANK", "value": "1"}]),
        "spec.template.spec.containers",
        "accelerators[].parallelism.data",
    ),
    Refusal("arguments", _container(args=["x"]), "spec.template.spec.containers", "use engine.args"),
    Refusal("an image", _container(image="x"), "spec.template.spec.containers", "use engine.image"),
    Refusal("ports", _container(ports=[{"containerPort": 1}]), "spec.template.spec.containers", "listens on port 8000"),
    Refusal("a liveness probe", _container(livenessProbe={}), "spec.template.spec.containers", "livenessProbe"),
    Refusal("a readiness probe", _container(readinessProbe={}), "spec.template.spec.containers", "readinessProbe"),
    Refusal("a startup probe", _container(startupProbe={}), "spec.template.spec.containers", "startupProbe"),
    Refusal("a lifecycle", _container(lifecycle={"preStop": {}}), "spec.template.spec.containers", "drains replicas"),
    Refusal(
        "a grace period",
        {"template": {"spec": {"terminationGracePeriodSeconds": 0}}},
        "spec.template.spec.terminationGracePeriodSeconds",
        "set engine.shutdownTimeout",
    ),
    Refusal(
        "a restart policy",
        {"template": {"spec": {"restartPolicy": "Never"}}},
        "spec.template.spec.restartPolicy",
        "replicas always restart",
    ),
    Refusal(
        "volumes that are no list",
        {"template": {"spec": {"volumes": {"name": "data"}}}},
        "spec.template.spec.volumes",
        "begin each item with a dash",
        "unknown field",
    ),
    Refusal(
        "a quantity that is a fraction",
        {"engine": {"resources": {"limits": {"cpu": 0.5}}}},
        "spec.engine.resources.limits.cpu",
        "put other numbers in quotes",
        "must be of type integer",
    ),
    Refusal("a node", {"template": {"spec": {"nodeName": "gpu-7"}}}, "spec.template.spec.nodeName", "nodeSelector"),
    Refusal(
        "a priority class of the system",
        {"template": {"spec": {"priorityClassName": "system-node-critical"}}},
        "spec.template.spec.priorityClassName",
        "PriorityClass of your own",
    ),
    Refusal(
        "a label of the operator",
        {"template": {"metadata": {"labels": {"holdfast.dev/service": "x"}}}},
        "spec.template.metadata.labels",
        "use another prefix",
    ),
    Refusal(
        "an annotation of the operator",
        {"template": {"metadata": {"annotations": {"holdfast.dev/x": "x"}}}},
        "spec.template.metadata.annotations",
        "use another prefix",
    ),
)
_NAMES = (
    Refusal(
        "names that are too long together",
        _accelerators({"name": LABEL_50}),
        "metadata.name",
        "shorten one",
        name="abc",
    ),
    Refusal(
        "names that are too long for groups of pods",
        _accelerators({"name": LABEL_50[:40], "count": 2, "nodes": 2}),
        "metadata.name",
        "at most 44 characters",
        name="abcde",
    ),
    Refusal("a name with a dot", {}, "metadata.name", "starting with a letter", name="chat.v2"),
    Refusal("a name that starts with a digit", {}, "metadata.name", "starting with a letter", name="7b-chat"),
)
# Strict kubectl names an unknown field; these come with later versions and are refused until then.
TARGET: dict[str, Any] = {"target": {"kind": "Deployment", "name": "chat"}, "model": None, "accelerators": None}
_NOT_WITH_TARGET: tuple[dict[str, Any], ...] = (
    {"model": {"uri": "Qwen/Qwen3-8B"}},
    {"accelerators": [{"name": "h100"}]},
    {"engine": {}},
    {"template": {"spec": {}}},
    {"rollout": {}},
    {"batching": {"mode": "Auto"}},
    {"inferencePool": {"endpointPicker": {"name": "chat-epp"}}},
    {"router": {}},
    {"prefill": {}},
)
_PAIR: dict[str, Any] = {"router": {}, "replicas": 2, "prefill": {"replicas": 1}}
_TWO_NODES = [{"name": "h100", "count": 2, "nodes": 2}]
_PREFILL = (
    Refusal("a prefill pool without a router", {**_PAIR, "router": None}, "spec.prefill", "set router: {}"),
    Refusal(
        "a prefill pool of a service that may rest", {**_PAIR, "scaling": {"min": 0}}, "spec.scaling", "remove prefill"
    ),
    Refusal(
        "a prefill pool without a size",
        {**_PAIR, "prefill": {}},
        "spec.prefill",
        "set replicas and prefill.replicas",
    ),
    Refusal(
        "a prefill pool of a service that is sized",
        {**_PAIR, "replicas": None},
        "spec.prefill",
        "set replicas and prefill.replicas",
    ),
    Refusal("groups behind a prefill pool", {**_PAIR, "accelerators": _TWO_NODES}, "spec.prefill", "remove nodes"),
    Refusal(
        "a prefill pool of groups",
        {**_PAIR, "prefill": {"replicas": 1, "accelerators": _TWO_NODES}},
        "spec.prefill",
        "remove nodes",
    ),
    Refusal(
        "a prefill pool with adapters",
        {**_PAIR, "model": {"lora": {"adapters": [{"name": "sql", "uri": "/adapters/sql"}]}}},
        "spec.prefill",
        "remove model.lora",
    ),
    *(
        Refusal(
            f"a prefill pool with classes that {how}",
            {**_PAIR, "slo": {"classes": [{"name": "premium"}], **claim}},
            "spec.slo.claim",
            "set slo.claim: Body",
        )
        for how, claim in (("a header names", {}), ("nothing names", {"claim": "None"}))
    ),
    Refusal(
        "a prefill pool without the plugin",
        {**_PAIR, "engine": {"plugin": "Disabled"}},
        "spec.prefill",
        "remove engine.plugin",
    ),
    Refusal(
        "a prefill pool within a budget",
        {**_PAIR, "budget": {"maxCostPerHour": 9.0}, "accelerators": [{"name": "h100", "costPerHour": 1.0}]},
        "spec.prefill",
        "remove the budget",
    ),
    Refusal(
        "a prefill pool of two accelerators",
        {**_PAIR, "prefill": {"replicas": 1, "accelerators": [{"name": "a"}, {"name": "b"}]}},
        "spec.prefill.accelerators",
        "at most 1 item",
        "must have at most 1 item",
    ),
    Refusal(
        "names too long for the pods of a prefill pool",
        _PAIR,
        "",
        "at most 44 characters",
        name="c" * 41,
    ),
)
_ROUTER = (
    Refusal(
        "a router next to a pool",
        {"router": {}, "inferencePool": {"endpointPicker": {"name": "chat-epp"}}},
        "spec.router",
        "remove the one that does not route",
    ),
    Refusal(
        "a router in front of TLS",
        {"router": {}, "engine": {"tlsSecretRef": {"name": "tls"}}},
        "spec.router",
        "terminate TLS at a gateway, or remove router",
    ),
    Refusal(
        "a router in front of an API key",
        {"router": {}, "engine": {"apiKeySecretRef": {"name": "chat", "key": "token"}}},
        "spec.router",
        "ask for the key at a gateway, or remove router",
    ),
    *(
        Refusal(f"a router in front of a key in {place}", {"router": {}, **spec}, "spec.router", "remove VLLM_API_KEY")
        for place, spec in (
            ("engine.env", {"engine": {"env": [{"name": "VLLM_API_KEY", "value": "secret"}]}}),
            ("an accelerator's env", {"accelerators": [{"name": "h100", "env": [{"name": "VLLM_API_KEY"}]}]}),
            ("prefill.env", {**_PAIR, "prefill": {"replicas": 1, "env": [{"name": "VLLM_API_KEY"}]}}),
            (
                "an accelerator's env of the prefill pool",
                {
                    **_PAIR,
                    "prefill": {
                        "replicas": 1,
                        "accelerators": [{"name": "h100", "env": [{"name": "VLLM_API_KEY"}]}],
                    },
                },
            ),
        )
    ),
    Refusal(
        "a router of a service that rejects",
        {"router": {}, "overload": "Reject"},
        "spec.router",
        "remove overload, or router",
    ),
    Refusal(
        "an accelerator with the name of a router",
        {"router": {}, "accelerators": [{"name": "router"}]},
        "spec.accelerators",
        "rename it",
    ),
    *(
        Refusal(f"{size} router pods", {"router": {"replicas": size}}, "spec.router.replicas", remedy, server)
        for size, remedy, server in (
            (0, "greater than or equal to 1", "should be greater than or equal to 1"),
            (-1, "greater than or equal to 1", "should be greater than or equal to 1"),
            (33, "less than or equal to 32", "should be less than or equal to 32"),
        )
    ),
)
_PICKER = "spec.inferencePool.endpointPicker"
_INFERENCE_POOL = (
    Refusal("a pool without an endpoint picker", {"inferencePool": {}}, _PICKER, "add it", "Required value"),
    Refusal(
        "an endpoint picker without a name",
        {"inferencePool": {"endpointPicker": {}}},
        f"{_PICKER}.name",
        "add it",
        "Required value",
    ),
    Refusal(
        "an endpoint picker of no name",
        {"inferencePool": {"endpointPicker": {"name": ""}}},
        f"{_PICKER}.name",
        "Kubernetes object",
    ),
    *(
        Refusal(
            f"port {port} of an endpoint picker",
            {"inferencePool": {"endpointPicker": {"name": "chat-epp", "port": port}}},
            f"{_PICKER}.port",
            remedy,
            server,
        )
        for port, remedy, server in (
            (0, "greater than or equal to 1", "should be greater than or equal to 1"),
            (-1, "greater than or equal to 1", "should be greater than or equal to 1"),
            (65_536, "less than or equal to 65535", "should be less than or equal to 65535"),
        )
    ),
    Refusal(
        "a pool of a service that may rest",
        {"inferencePool": {"endpointPicker": {"name": "chat-epp"}}, "scaling": {"min": 0}},
        "spec.scaling",
        "raise scaling.min, or remove inferencePool",
    ),
)
_TARGET = (
    *(
        Refusal(f"{name} next to a target", {**TARGET, **spec}, f"spec.{name}", f"remove {name}")
        for spec in _NOT_WITH_TARGET
        for name in spec
    ),
    Refusal("a target without a name", {**TARGET, "target": {}}, "spec.target.name", "add it", "Required value"),
    Refusal("a target of no name", {**TARGET, "target": {"name": ""}}, "spec.target.name", "Kubernetes object"),
    Refusal("a target with a long name", {**TARGET, "target": {"name": "a" * 47}}, "spec.target.name", "shorter name"),
    Refusal(
        "a target of another kind",
        {**TARGET, "target": {"kind": "StatefulSet", "name": "chat"}},
        "spec.target.kind",
        "Deployment",
    ),
    Refusal(
        "classes of a target", {**TARGET, **_classes(PREMIUM)}, "spec.slo.classes", "remove slo.classes, or target"
    ),
    Refusal("no replica of a target", {**TARGET, "scaling": {"min": 0}}, "spec.scaling.min", "raise scaling.min"),
    Refusal(
        "no pinned replica of a target", {**TARGET, "replicas": 0, "scaling": {"min": 1}}, "spec.replicas", "change it"
    ),
    Refusal("a floor off spot of a target", {**TARGET, "scaling": {"minOnDemand": 1}}, "spec.scaling", "remove min"),
    Refusal("a budget of a target", {**TARGET, "budget": {"maxCostPerHour": 5}}, "spec.budget", "remove the budget"),
    Refusal("refusal in overload of a target", {**TARGET, "overload": "Reject"}, "spec.overload", "remove overload"),
)
_UNKNOWN = tuple(
    Refusal(f"the unknown field {path}", spec, path.rsplit(".", 1)[-1], "check its spelling", "unknown field")
    for path, spec in (
        ("spec.slo.tftt", {"slo": {"tftt": "1s"}}),
        ("spec.adopt", {"adopt": {"deployment": "old"}}),
        ("spec.template.spec.tolerationz", {"template": {"spec": {"tolerationz": []}}}),
        ("spec.engine.resources.limit", {"engine": {"resources": {"limit": {}}}}),
        ("spec.model.max_model_len", {"model": {"max_model_len": 4096}}),
    )
)
_OTHER_TYPES = (
    *(
        Refusal(f"{name} as {value!r}", spec, path, f"valid {kind}", f"must be of type {kind}")
        for path, kind, value, spec in (
            ("spec.scaling.max", "integer", "3", {"scaling": {"max": "3"}}),
            ("spec.replicas", "integer", True, {"replicas": True}),
            ("spec.accelerators[0].costPerHour", "number", "3", _accelerators({**H100, "costPerHour": "3"})),
            ("spec.accelerators[0].costPerHour", "number", True, _accelerators({**H100, "costPerHour": True})),
        )
        for name in (path.rpartition(".")[2],)
    ),
    Refusal("no surge as false", {"rollout": {"maxSurge": False}}, "spec.rollout.maxSurge", "valid", "of type integer"),
    Refusal(
        "a plugin revision that is no 64-bit number",
        {"engine": {"pluginRevision": 2**63}},
        "spec.engine.pluginRevision",
        "a whole number",
        "must be of type integer",
    ),
    Refusal(
        "a port that is no 64-bit number",
        {"template": {"spec": {"containers": [{"name": "logs", "ports": [{"containerPort": 2**63}]}]}}},
        "spec.template.spec.containers[0].ports[0].containerPort",
        "whole number",
        "must be of type integer",
    ),
)

REFUSALS = (
    *_INFERENCE_POOL,
    *_ROUTER,
    *_PREFILL,
    *_TARGET,
    *_SLO,
    *_MODEL,
    *_ACCELERATORS,
    *_SIZES,
    *_SCHEDULES,
    *_ENGINE,
    *_TEMPLATE,
    *_NAMES,
    *_UNKNOWN,
    *_OTHER_TYPES,
)

ACCEPTED = (
    Accepted("the minimal object"),
    Accepted("a pool for a gateway", {"inferencePool": {"endpointPicker": {"name": "chat-epp", "port": 65_535}}}),
    Accepted("a router of the defaults", {"router": {}}),
    Accepted("a prefill pool as the replicas are", _PAIR),
    Accepted(
        "a prefill pool of its own kind",
        {
            **_PAIR,
            "prefill": {
                "replicas": 3,
                "accelerators": [{"name": "a100", "count": 2}],
                "args": ["--enforce-eager"],
                "env": [],
                "batching": {"maxNumBatchedTokens": 16_384},
            },
        },
    ),
    Accepted("a router of a service that may rest", {"router": {"replicas": 32}, "scaling": {"min": 0}}),
    Accepted("an accelerator called router without one", _accelerators({"name": "router"})),
    Accepted("the tightest objective", {"slo": {"objective": "99.999%"}}),
    Accepted("an objective just above half", {"slo": {"objective": "50.01%"}}),
    Accepted("every unit", {"slo": {"ttft": "0.5s", "tpot": "0.5ms", "e2e": "1.5m", "window": "30d"}}),
    Accepted("the shortest window", {"slo": {"window": "5m"}}),
    Accepted("e2e just above ttft", {"slo": {"ttft": "1m", "e2e": "60.1s"}}),
    Accepted("a model in the image", {"model": {"uri": "/models/chat"}}),
    Accepted("a model on a claim", {"model": {"uri": "pvc://weights/qwen/8b"}}),
    Accepted("a model as an image", {"model": {"uri": "oci://registry.example.com:5000/models/qwen:8b"}}),
    Accepted("a model without owner", {"model": {"uri": "gpt2"}}),
    Accepted("an empty cache choice", {"model": {"cache": {"emptyDir": {}}}}),
    Accepted("a cache on a claim", {"model": {"cache": {"pvc": "weights"}}}),
    Accepted("free accelerators", _accelerators({**H100, "costPerHour": 0})),
    Accepted("costs for all", _accelerators({**H100, "costPerHour": 2.95}, {**L40S, "costPerHour": 0.86})),
    Accepted("another quantization on one accelerator", _accelerators({**H100, "args": ["--quantization=fp8"]}, L40S)),
    Accepted("an accelerator by its data sheet", _accelerators({**H100, "hardware": _HARDWARE})),
    Accepted("a small part of a GPU", _accelerators({**H100, "hardware": {**_HARDWARE, "memoryGiB": 4.75}})),
    Accepted("spot alone", _accelerators({**H100, "spot": True})),
    Accepted(
        "spot beside as many regular ones as there may be",
        {
            **_accelerators({**H100, "spot": True, "costPerHour": 1}, {**L40S, "max": 2, "costPerHour": 3}),
            "scaling": {"minOnDemand": 2, "max": 2},
            "budget": {"maxCostPerHour": 6},
        },
    ),
    Accepted(
        "as many replicas on one accelerator as there must be",
        {**_accelerators({**H100, "max": 1}, {**L40S, "max": 3}), "scaling": {"min": 3}},
    ),
    Accepted(
        "as many replicas on spot and beside it as there must be",
        {
            **_accelerators({**H100, "name": "spot", "spot": True, "max": 1}, {**H100, "max": 2}),
            "scaling": {"min": 3, "minOnDemand": 2},
        },
    ),
    Accepted(
        "a budget that just pays for a floor off spot and all beside it",
        {
            **_accelerators(
                {**H100, "name": "spot", "spot": True, "costPerHour": 1}, {**H100, "costPerHour": 3, "max": 2}
            ),
            "scaling": {"min": 4, "minOnDemand": 2},
            "budget": {"maxCostPerHour": 8},
        },
    ),
    Accepted(
        "as many replicas on one accelerator as a schedule asks for",
        {**_accelerators({**H100, "max": 1}, {**L40S, "max": 3}), **_schedules({"min": 3})},
    ),
    Accepted(
        "as many pinned replicas as one accelerator may have",
        {**_accelerators({**H100, "max": 1}, {**L40S, "max": 3}), "replicas": 3},
    ),
    Accepted("no pinned replica", {**_accelerators({**H100, "max": 1}), "scaling": {"min": 0}, "replicas": 0}),
    Accepted("no replica on one accelerator of two", _accelerators({**H100, "max": 0}, L40S)),
    Accepted("a floor off spot without spot", {"scaling": {"minOnDemand": 1}}),
    Accepted("replicas at the bounds", {"replicas": 2, "scaling": {"min": 2, "max": 2}}),
    Accepted("a schedule", _schedules({})),
    Accepted("no schedule", {"scaling": {"schedules": []}}),
    Accepted("a schedule over midnight on some days", _schedules({"start": "22:00", "end": "06:00", "days": ["Fri"]})),
    Accepted("a schedule of a whole day", _schedules({"start": "00:00", "end": "24:00", "timezone": "UTC"})),
    Accepted("a floor at max", _schedules({}, max=3)),
    Accepted("a floor below min", _schedules({"min": 1}, min=2)),
    Accepted("a floor that nobody knows the hours of", _schedules({"timezone": "Europe/Atlantis"})),
    Accepted("a time zone of three parts", _schedules({"timezone": "America/Argentina/Buenos_Aires"})),
    Accepted("a time zone with a sign", _schedules({"timezone": "Etc/GMT-14"})),
    Accepted("sixteen schedules", _schedules(*({"name": f"s{i}"} for i in range(16)))),
    Accepted(
        "a budget that just pays for a floor",
        {
            **_accelerators({**H100, "costPerHour": 3}, {**L40S, "costPerHour": 2.5}),
            **_schedules({}),
            "budget": {"maxCostPerHour": 7.5},
        },
    ),
    Accepted("a target", TARGET),
    Accepted("a target to scale", {**TARGET, "mode": "Auto", "replicas": 2, **_schedules({})}),
    Accepted("no surge", {"rollout": {"maxSurge": 0}}),
    Accepted("one surge", {"rollout": {"maxSurge": 1}}),
    Accepted("a surge of ten", {"rollout": {"maxSurge": 10}}),
    Accepted("Auto batching", {"batching": {"mode": "Auto"}}),
    Accepted("Auto batching up to one bound", {"batching": {"maxNumSeqs": 8}}),
    Accepted("refusal in overload", {"overload": "Reject"}),
    Accepted("no plugin", {"engine": {"plugin": "Disabled"}}),
    Accepted("a plugin revision as a number", {"engine": {"pluginRevision": 2}}),
    Accepted("a plugin revision as a word", {"engine": {"pluginRevision": "2026-03 again"}}),
    Accepted("as many tokens as sequences", {"batching": {"maxNumSeqs": 8, "maxNumBatchedTokens": 8}}),
    Accepted(
        "a whole engine that moves its cache",
        {"engine": {"args": ["--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}']}},
    ),
    Accepted("a runner that generates", {"engine": {"args": ["--runner=generate", "--convert", "none"]}}),
    Accepted("a name like that of embeddings", {"model": {"uri": "team/embedded-chat"}}),
    Accepted("a folder like that of embeddings", {"model": {"uri": "/models/bge-m3"}}),
    Accepted(
        "a model for embeddings that generates",
        {"model": {"uri": "team/Embedding-Chat"}, "engine": {"args": ["--runner=generate"]}},
    ),
    Accepted("classes", _classes(PREMIUM, {"name": "bulk", "ttft": "1m", "e2e": "10m", "priority": -1})),
    Accepted("a class for batch", _classes({"name": "night", "kind": "Batch", "priority": -1})),
    *(
        Accepted(f"batch within {value}", _classes({"name": "night", "kind": "Batch", "finishWithin": value}))
        for value in ("1m", "8h", "7d", "90m")
    ),
    Accepted("shares of classes", _classes({"name": "a", "minShare": "12.5%"}, {"name": "b", "maxShare": "100%"})),
    Accepted("classes that no request may name", {"slo": {"classes": [PREMIUM], "claim": "None"}}),
    Accepted("the front end in Rust", {"engine": {"frontEnd": "Rust"}}),
    Accepted("the usual frontend", {"engine": {"env": [{"name": "VLLM_USE_RUST_FRONTEND", "value": "0"}]}}),
    Accepted("a variable without a value", {"engine": {"env": [{"name": "VLLM_PLUGINS"}]}}),
    Accepted(
        "another frontend in a container of the user's",
        {"template": {"spec": {"containers": [{"name": "b", "env": [{"name": "VLLM_USE_RUST_FRONTEND"}]}]}}},
    ),
    Accepted("a group of two nodes", _accelerators({**H100, "count": 16, "nodes": 2})),
    Accepted(
        "a stage on each node", _accelerators({**H100, "nodes": 2, "parallelism": {"tensor": 8, "pipeline": 2}})
    ),
    Accepted("names that groups of pods have room for", _accelerators({"name": LABEL_50[:40], "count": 2, "nodes": 2})),
    Accepted("two stages", _accelerators({**H100, "parallelism": {"pipeline": 2}})),
    Accepted("a product", _accelerators({**H100, "count": 8, "parallelism": {"tensor": 4, "data": 2}})),
    Accepted("no way of sharing", _accelerators({**H100, "parallelism": {}})),
    Accepted("the most GPUs", _accelerators({**H100, "parallelism": {"tensor": 4, "pipeline": 4, "data": 4}})),
    Accepted("further flags", {"engine": {"args": ["--seed=1", "--enable-prefix-caching"]}}),
    Accepted("a sidecar with all its fields", {
        "template": {"spec": {"containers": [{
            "name": "logs", "image": "logs:1", "command": ["tail"], "ports": [{"containerPort": 9}], "lifecycle": {},
        }]}},
    }),
    Accepted("labels of one's own", {"template": {"metadata": {"labels": {"team": "search"}}}}),
    Accepted("a runtime class", {"template": {"spec": {"runtimeClassName": "nvidia"}}}),
    Accepted("adapters", {
        **_adapters(
            TIGHT_SQL, {"name": "chat-de", "uri": f"org/chat-de@{'0123456789' * 4}"}, {"name": "b", "uri": "/a/b..c"},
            maxRank=512, maxLoaded=1,
        ),
        **_classes(PREMIUM),
    }),
    Accepted("adapters without objectives or plugin", {**_adapters(SQL), "engine": {"plugin": "Disabled"}}),
    Accepted("32 classes and adapters, and more without objectives", {
        **_adapters(
            *({**TIGHT_SQL, "name": f"a{number}"} for number in range(16)),
            *({**SQL, "name": f"b{number}"} for number in range(48)),
        ),
        **_classes(*({"name": f"c{number}"} for number in range(16))),
    }),
    Accepted("arguments for adapters", {"engine": {"args": ["--enable-lora", "--lora-modules", "sql=/adapters/sql"]}}),
    Accepted("names that just fit", _accelerators({"name": LABEL_50}), name="ab"),
)  # fmt: skip
