"""LLMBenchmarks that must be refused and that must be taken, for the types and for the real API server alike."""

import copy
from typing import Any

from tests.api.refusals import DURATION, Accepted, Refusal, _merge

MINIMAL: dict[str, Any] = {
    "apiVersion": "holdfast.dev/v1alpha1",
    "kind": "LLMBenchmark",
    "metadata": {"name": "sweep"},
    "spec": {"target": {"serviceRef": {"name": "chat"}}, "sweep": {}},
}
SLO = {"ttft": "500ms", "tpot": "30ms"}
RECORDED = {"configMapKeyRef": {"name": "trace", "key": "azure.csv"}}


class RefusedBenchmark(Refusal):
    """A change to the minimal benchmark."""

    @property
    def body(self) -> dict[str, Any]:
        """The whole object."""
        return benchmark(self.spec, self.name)


class AcceptedBenchmark(Accepted):
    """A change to the minimal benchmark."""

    @property
    def body(self) -> dict[str, Any]:
        """The whole object."""
        return benchmark(self.spec, self.name)


def benchmark(spec: Any = (), name: str = "sweep") -> dict[str, Any]:
    """The minimal benchmark with changes merged into its spec: None removes, lists replace."""
    body = copy.deepcopy(MINIMAL)
    body["metadata"]["name"] = name
    _merge(body["spec"], dict(spec))
    return body


def _url(text: str) -> dict[str, Any]:
    return {"target": {"serviceRef": None, "url": text}}


def _refused(sentence: str, spec: dict[str, Any], at: str, remedy: str, server: str = "", name: str = "sweep") -> Any:
    return RefusedBenchmark(sentence, spec, at, remedy, server, name)


ADDRESS = "url must be the address of a server, without user and password"
REFUSED: tuple[RefusedBenchmark, ...] = (
    _refused(
        "no target", {"target": {"serviceRef": None}}, "target", ("target must have exactly one of serviceRef and url")
    ),
    _refused(
        "two targets", {"target": {"url": "http://a"}}, "target", "target must have exactly one of serviceRef and url"
    ),
    _refused("no load", {"sweep": None}, "spec", "set exactly one load of sweep, rate, concurrency, trace"),
    _refused("two loads", {"concurrency": 3}, "spec", "set exactly one load"),
    _refused("a url with a password", _url("http://me:secret@host:8000"), "url", ADDRESS),
    _refused("a url of another scheme", _url("file:///etc/passwd"), "url", ADDRESS),
    _refused("a url with a query", _url("http://host/v1?a=b"), "url", ADDRESS),
    _refused("a url with a space", _url("http://host/v1 --json"), "url", ADDRESS),
    _refused("a url with a variable", _url("http://$(HOME)/v1"), "url", ADDRESS),
    _refused("a port that is none", _url("http://host:65536"), "url", ADDRESS),
    _refused("a port of six digits", _url("http://host:655350"), "url", ADDRESS),
    _refused("a model with a NUL", {"target": {"model": "chat\0"}}, "target.model", "must not have control characters"),
    _refused(
        "lengths beside a trace",
        {"sweep": None, "trace": RECORDED, "lengths": {"promptTokens": 3}},
        "lengths",
        "remove lengths",
    ),
    _refused(
        "lengths both drawn and made",
        {"lengths": {"promptTokens": 3, "trace": RECORDED}},
        "lengths",
        "remove trace or the other fields",
    ),
    _refused("a duration of nothing", {"duration": "0s"}, "duration", DURATION),
    _refused("a duration without a unit", {"duration": "60"}, "duration", DURATION),
    _refused("a timeout too short to start a pod", {"timeout": "30s"}, "timeout", DURATION),
    _refused("no client lag at all", {"maxClientLag": "0s"}, "maxClientLag", DURATION),
    _refused("an e2e below ttft", {"slo": {**SLO, "e2e": "400ms"}}, "e2e", "e2e must be longer than ttft"),
    _refused("an objective of everything", {"slo": {**SLO, "objective": "100%"}}, "objective", "above 50% and below"),
    _refused(
        "a key that leads out of its folder",
        {"lengths": {"trace": {"configMapKeyRef": {"name": "trace", "key": "../../etc/passwd"}}}},
        "key",
        "key must be a key of a ConfigMap",
    ),
    _refused("a rate of nothing", {"sweep": None, "rate": {"rps": 0}}, "rps", "greater than 0", "greater than 0"),
    _refused("less than no rate", {"sweep": {"startRps": -1}}, "startRps", "greater than 0", "greater than 0"),
    _refused("one trial", {"sweep": {"maxTrials": 1}}, "maxTrials", "greater than or equal to 2", "equal to 2"),
    _refused("tuning what an address leads to", {**_url("http://a"), "sweep": None, "tune": {}}, "tune", "serviceRef"),
    _refused("a duration of batches", {"sweep": None, "latency": {}, "duration": "1m"}, "duration", "remove duration"),
    _refused(
        "a duration of all at once", {"sweep": None, "throughput": {}, "duration": "1m"}, "duration", "remove duration"
    ),
    _refused(
        "a batch of none", {"sweep": None, "latency": {"batchSize": 0}}, "batchSize", "or equal to 1", "or equal to 1"
    ),
    _refused(
        "a throughput of nothing",
        {"sweep": None, "throughput": {"requests": 0}},
        "requests",
        "or equal to 1",
        "or equal to 1",
    ),
    _refused("both offline loads", {"sweep": None, "latency": {}, "throughput": {}}, "spec", "set exactly one load"),
    _refused("a duration of tuning", {"sweep": None, "tune": {}, "duration": "1m"}, "duration", "remove duration"),
    _refused(
        "fewer tokens than sequences to look for",
        {"sweep": None, "tune": {"maxNumSeqs": 512, "maxNumBatchedTokens": 256}},
        "maxNumBatchedTokens",
        "at least maxNumSeqs",
    ),
    _refused(
        "too few requests to tell", {"sweep": None, "tune": {"requests": 3}}, "requests", "equal to 20", "equal to 20"
    ),
    _refused("an unknown field", {"shell": "rm -rf"}, "shell", "unknown field", "unknown field"),
    _refused("a name too long for a Job", {}, "", "at most 52 characters", name="a" * 53),
    _refused("a name with a dot", {}, "", "lower-case letters, digits and '-'", name="a.b"),
)
ACCEPTED: tuple[AcceptedBenchmark, ...] = (
    AcceptedBenchmark("the smallest", name="sweep"),
    AcceptedBenchmark("the longest name", name="a" * 52),
    AcceptedBenchmark("the last port", _url("http://host:65535"), "sweep"),
    AcceptedBenchmark("an address with a path", _url("https://gateway.example.com:8443/team-a/v1"), "sweep"),
    AcceptedBenchmark("a rate", {"sweep": None, "rate": {"rps": 2.5, "cv": 2}}, "sweep"),
    AcceptedBenchmark("a concurrency", {"sweep": None, "concurrency": 64, "duration": "2m"}, "sweep"),
    AcceptedBenchmark("a trace", {"sweep": None, "trace": {**RECORDED, "format": "azure", "speed": 2}}, "sweep"),
    AcceptedBenchmark("batches", {"sweep": None, "latency": {"batchSize": 4, "requests": 40}}, "sweep"),
    AcceptedBenchmark("all at once", {"sweep": None, "throughput": {}, "lengths": {"promptTokens": 9}}, "sweep"),
    AcceptedBenchmark("tuning", {"sweep": None, "tune": {"accelerator": "h100", "maxNumSeqs": 512}}, "sweep"),
    AcceptedBenchmark("drawn lengths", {"lengths": {"trace": RECORDED}}, "sweep"),
    AcceptedBenchmark("objectives of its own", {"slo": {**SLO, "e2e": "20s", "objective": "90%"}}, "sweep"),
)
