"""The operator's settings: one table of flags, each also an environment variable HOLDFAST_<FLAG>."""

from __future__ import annotations

import argparse
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from holdfast.api import tenants
from holdfast.api.images import copied_image, copies_by_image
from holdfast.api.llmservice import GROUP
from holdfast.api.pod_security import PRIVILEGES
from holdfast.api.quantities import parse_duration_seconds
from holdfast.page.access import LEAST_TOKEN_CHARACTERS, Token

_IN_CLUSTER_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_METRIC_LABEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?")


class SettingsError(ValueError):
    """An invalid setting; the message is one line: the flag, the problem, the remedy."""


def _duration(text: str) -> str:
    parse_duration_seconds(text)
    return text


def _http_url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    return text.rstrip("/")


def _header(text: str) -> str:
    name, _, value = text.partition("=")
    if not name or not value or not text.isprintable():
        raise ValueError("must be NAME=VALUE, such as X-Scope-OrgID=team-a")
    return text


def _matcher(text: str) -> str:
    name, _, value = text.partition("=")
    if not _METRIC_LABEL_NAME.fullmatch(name) or not value or not text.isprintable():
        raise ValueError("must be NAME=VALUE with a Prometheus label, such as cluster=prod-eu")
    return text


def _object_name(text: str) -> str:
    if text and not _OBJECT_NAME.fullmatch(text):
        raise ValueError("must be the name of a Kubernetes object: lower-case letters, digits, '-', '.'")
    return text


def _host(text: str) -> str:
    if not _HOST_NAME.fullmatch(text):
        raise ValueError("must be a host name without scheme and port, such as holdfast.example.com")
    return text


def _label(text: str) -> str:
    name, separator, value = text.partition("=")
    if not separator or not _LABEL_NAME.fullmatch(name) or not _LABEL_VALUE.fullmatch(value):
        raise ValueError("must be NAME=VALUE with a valid label, such as release=kube-prometheus-stack")
    if name.startswith(f"{GROUP}/"):
        raise ValueError(f"label {name} is reserved for Holdfast; choose another one")
    return text


Duration = Annotated[str, AfterValidator(_duration)]
ObjectName = Annotated[str, AfterValidator(_object_name)]


class Settings(BaseModel):
    """All settings of an operator process; durations as in the API (`500ms`, `5s`, `1h`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prometheus_url: Annotated[str, AfterValidator(_http_url)] = Field(
        description="address of a server with the Prometheus HTTP API, such as http://prometheus.monitoring:9090"
    )
    prometheus_token_file: Path | None = Field(
        None, description=("file with a bearer token for Prometheus; reloaded when it changes")
    )
    prometheus_ca_file: Path | None = Field(None, description="file with the CA certificate of an https Prometheus")
    prometheus_header: tuple[Annotated[str, AfterValidator(_header)], ...] = Field(
        (), description="extra header NAME=VALUE of Prometheus requests, such as X-Scope-OrgID=team-a; may be repeated"
    )
    prometheus_matcher: tuple[Annotated[str, AfterValidator(_matcher)], ...] = Field(
        (),
        description=(
            "label NAME=VALUE that only the series of this cluster have, if Prometheus stores several "
            "clusters; may be repeated"
        ),
    )
    prometheus_insecure: bool = Field(False, description="do not verify the certificate of an https Prometheus")
    scrape_interval: Duration = Field("15s", description="scrape interval of the engines in Prometheus")
    tick: Duration = Field("5s", description="interval of the decisions for all services")
    node_provisioning_time: Duration = Field(
        "5m", description="maximum wait of a pod for a node; then another accelerator is used"
    )
    startup_timeout: Duration = Field(
        "30m", description="maximum start time of an engine; then another accelerator is used"
    )
    pod_monitor_label: tuple[Annotated[str, AfterValidator(_label)], ...] = Field(
        (), description="label NAME=VALUE of every PodMonitor, by which Prometheus selects them; may be repeated"
    )
    namespace: tuple[ObjectName, ...] = Field(
        (), description="watch only this namespace; may be repeated (default: all)"
    )
    lease_namespace: ObjectName = Field("", description="namespace of the leader Lease (default: that of the operator)")
    lease_name: ObjectName = Field("holdfast", description="name of the leader Lease; use one name per shard")
    lease_duration: Duration = Field(
        "15s", description="time after which another process may take over from a silent leader"
    )
    identity: str = Field("", description="name of this process in the Lease (default: host name)")
    idle_time: Duration = Field(
        "10m",
        description="idle time before the last replica is removed, if scaling.min is 0",
    )
    activator_image: str = Field(
        "", description="image of this program, for activators (scaling.min 0), routers and benchmark clients"
    )
    engine_image: tuple[Annotated[str, AfterValidator(copied_image)], ...] = Field(
        (),
        description=(
            "copy that engines use in place of an image, IMAGE=COPY, such as "
            "vllm/vllm-openai:v0.32.0=registry.local/vllm-openai:v0.32.0; may be repeated"
        ),
    )
    allow_template: tuple[Literal[PRIVILEGES], ...] = Field(  # type: ignore[valid-type]
        (), description=f"privilege that pod templates may use; may be repeated: {', '.join(PRIVILEGES)}"
    )
    platform_assigns_ids: bool = Field(
        False,
        description=(
            "set no user and group ids in the pods of engines, activators and benchmarks, "
            "because the platform assigns them, as OpenShift does"
        ),
    )
    max_priority: tuple[Annotated[str, AfterValidator(tenants.max_priority)], ...] = Field(
        (),
        description=(
            "highest spec.priority that counts, NAMESPACE=PRIORITY, such as team-a=10; * for all other namespaces; "
            "may be repeated"
        ),
    )
    namespace_share: tuple[Annotated[str, AfterValidator(tenants.namespace_share)], ...] = Field(
        (),
        description=(
            "most GPUs of each resource in the cluster that a namespace gets beyond scaling.min, NAMESPACE=PERCENT%, "
            "such as team-a=50%; * for all other namespaces; may be repeated"
        ),
    )
    http_port: int = Field(8080, ge=0, le=65535, description="port for metrics and decisions of the operator")
    health_port: int = Field(8081, ge=0, le=65535, description="port for the kubelet's probes: /healthz and /readyz")
    status_port: int = Field(0, ge=0, le=65535, description="port of the status page (default: off)")
    status_token_file: Path | None = Field(
        None, description="file with the token of the status page; read at each request"
    )
    status_open: bool = Field(False, description="show the status page without a token to every client of its port")
    status_host: tuple[Annotated[str, AfterValidator(_host)], ...] = Field(
        (),
        description="allowed host name of the status page, in addition to IP addresses and localhost; may be repeated",
    )
    kubeconfig: Path | None = Field(None, description="run outside a cluster with this kubeconfig")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest level that is logged")
    log_format: Literal["text", "json"] = Field("text", description="log format: text or json, one record per line")

    @model_validator(mode="after")
    def _files_exist(self) -> Self:
        for flag in ("prometheus_token_file", "prometheus_ca_file", "status_token_file", "kubeconfig"):
            path = getattr(self, flag)
            if path is not None and not path.is_file():
                raise ValueError(f"{_flag(flag)}: no such file: {path}; mount it or correct the path")
        if self.tick_seconds < 1:
            raise ValueError("--tick: must be at least 1s; use 5s to 10s for most clusters")
        if self.scrape_seconds < 1:
            raise ValueError(
                "--scrape-interval: must be at least 1s; set the scrape interval of your Prometheus, 15s by default"
            )
        if self.startup_seconds < 10:
            raise ValueError("--startup-timeout: must be at least 10s; use 30m for large models from a slow registry")
        if self.lease_duration_seconds < 5:
            raise ValueError("--lease-duration: must be at least 5s; 15s is the default")
        return self

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        taken: dict[int, str] = {}
        for flag in ("http_port", "health_port", "status_port"):
            port = getattr(self, flag)
            if port in taken:
                other = taken[port]
                raise ValueError(f"{_flag(flag)}: {port} is already {other}; choose another port")
            if port:
                taken[port] = _flag(flag)
        return self

    @model_validator(mode="after")
    def _page_is_safe(self) -> Self:
        if self.status_port and self.status_token_file is None and not self.status_open:
            raise ValueError(
                "--status-port: the page asks for a token; name its file with --status-token-file, or set "
                "--status-open if every client of the port may read it"
            )
        if self.status_token_file is not None and not Token(self.status_token_file).usable:
            least = f"{LEAST_TOKEN_CHARACTERS} characters"
            raise ValueError(f"--status-token-file: must hold at least {least}, such as `openssl rand -hex 24` prints")
        return self

    @model_validator(mode="after")
    def _limited_namespaces_are_watched(self) -> Self:
        for flag in ("max_priority", "namespace_share"):
            try:
                named = tenants.by_namespace(getattr(self, flag), str)
            except ValueError as error:
                raise ValueError(f"{_flag(flag)}: {error}") from error
            for name in sorted(named.keys() - {tenants.ALL_OTHERS, *(self.namespace or named)}):
                remedy = f"correct its name, add --namespace={name}, or remove the limit"
                raise ValueError(f"{_flag(flag)}: namespace {name} is not watched; {remedy}")
        return self

    @property
    def max_priorities(self) -> dict[str, int]:
        return tenants.by_namespace(self.max_priority, int)

    @property
    def namespace_shares(self) -> dict[str, Fraction]:
        return tenants.by_namespace(self.namespace_share, tenants.share_of)

    @model_validator(mode="after")
    def _images_have_one_copy(self) -> Self:
        try:
            copies_by_image(self.engine_image)
        except ValueError as error:
            raise ValueError(f"--engine-image: {error}") from error
        return self

    @property
    def engine_images(self) -> dict[str, str]:
        return copies_by_image(self.engine_image)

    @property
    def tick_seconds(self) -> float:
        return parse_duration_seconds(self.tick)

    @property
    def scrape_seconds(self) -> float:
        return parse_duration_seconds(self.scrape_interval)

    @property
    def node_provisioning_seconds(self) -> float:
        return parse_duration_seconds(self.node_provisioning_time)

    @property
    def startup_seconds(self) -> float:
        return parse_duration_seconds(self.startup_timeout)

    @property
    def idle_seconds(self) -> float:
        return parse_duration_seconds(self.idle_time)

    @property
    def pod_monitor_labels(self) -> dict[str, str]:
        pairs = (label.partition("=") for label in self.pod_monitor_label)
        return {name: value for name, _, value in pairs}

    @property
    def lease_duration_seconds(self) -> float:
        return parse_duration_seconds(self.lease_duration)

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return _pairs(self.prometheus_header)

    @property
    def matchers(self) -> tuple[tuple[str, str], ...]:
        return _pairs(self.prometheus_matcher)

    @property
    def own_namespace(self) -> str:
        """Namespace of the Lease: as configured, else the pod's own, else `default`."""
        if self.lease_namespace:
            return self.lease_namespace
        return _IN_CLUSTER_NAMESPACE.read_text().strip() if _IN_CLUSTER_NAMESPACE.is_file() else "default"

    @property
    def own_identity(self) -> str:
        return self.identity or f"{socket.gethostname()}_{os.getpid()}"


def _pairs(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, _, value in (text.partition("=") for text in texts))


@dataclass(frozen=True, slots=True)
class _Option:
    name: str
    many: bool
    switch: bool


OF_PROMETHEUS = tuple(name for name in Settings.model_fields if name.startswith("prometheus_"))
"""Settings of commands that only read Prometheus."""


def add_arguments(parser: argparse._ActionsContainer, names: Iterable[str] = tuple(Settings.model_fields)) -> None:
    """Add one flag per setting; the help names its environment variable and default."""
    for name in names:
        field = Settings.model_fields[name]
        option, variable = _option(name), f"HOLDFAST_{name.upper()}"
        default = "" if field.is_required() or field.default in (None, (), "", False) else f" (default {field.default})"
        text = f"{field.description}{default} [{variable}]".replace("%", "%%")
        if option.switch:
            parser.add_argument(_flag(name), dest=name, action="store_true", default=None, help=text)
        else:
            action = "append" if option.many else "store"
            parser.add_argument(_flag(name), dest=name, action=action, default=None, help=text)


def read_settings(
    arguments: argparse.Namespace, environment: Mapping[str, str], names: Iterable[str] = tuple(Settings.model_fields)
) -> Settings:
    """Merge flags over HOLDFAST_* variables over defaults; raises SettingsError with one line."""
    values: dict[str, object] = {}
    for name in names:
        given = getattr(arguments, name, None)
        text = environment.get(f"HOLDFAST_{name.upper()}")
        if given is not None:
            values[name] = given
        elif text:
            values[name] = [part for part in text.split(",") if part] if _option(name).many else text
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_one_line(error.errors()[0])) from error


def _one_line(problem: Mapping[str, object]) -> str:
    location = problem["loc"]
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not isinstance(location, Sequence) or not location:
        return message
    name = str(location[0])
    remedy = Settings.model_fields[name].description if name in Settings.model_fields else "see holdfast run --help"
    return f"{_flag(name)}: {message}; {remedy}"


def _option(name: str) -> _Option:
    annotation = Settings.model_fields[name].annotation
    return _Option(name, many=str(annotation).startswith("tuple"), switch=annotation is bool)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
