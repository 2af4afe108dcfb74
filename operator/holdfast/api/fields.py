"""The kinds of values an LLMService is made of: bounded strings, durations, names, parts of pods."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictInt, StringConstraints, WithJsonSchema

from holdfast.api.engine_environment import environment_rules
from holdfast.api.pod_schema import MOST_WHOLE, Shaped, schema_of
from holdfast.api.quantities import DURATION_REMEDY, PERCENT_PATTERN, parse_duration_seconds, parse_percent
from holdfast.api.rules import Checked, NeedsUnit, Rule, cel_seconds, is_duration

LABEL_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_RESOURCE_PATTERN = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_OBJECT_NAME_PATTERN = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_PORT = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
_MODEL_PATTERNS = (
    "^[A-Za-z0-9][-A-Za-z0-9._]*(/[A-Za-z0-9][-A-Za-z0-9._]*)?$",
    "^/[!-~]*$",
    "^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[!-~]*)?$",
    "^oci://[!-.0-~]+/[!-~]+$",
)


def matches(pattern: str, message: str) -> Rule:
    """The rule that a string matches an anchored regular expression, the same in RE2 and in Python."""
    compiled = re.compile(pattern[1:-1])
    return Rule(f"self.matches('{pattern}')", message, lambda text: compiled.fullmatch(text) is not None)


def _duration(low: str, high: str) -> Checked:
    """A duration within bounds; a low bound of `0s` is exclusive, every other one inclusive."""
    least, most = parse_duration_seconds(low), parse_duration_seconds(high)
    over, text = (">", f"above 0 and at most {high}") if least == 0 else (">=", f"from {low} to {high}")

    def holds(value: str) -> bool:
        try:
            seconds = parse_duration_seconds(value)
        except ValueError:
            return False
        return (seconds > 0 if least == 0 else seconds >= least) and seconds <= most

    seconds = cel_seconds("self")
    cel = f"{is_duration('self')} && {seconds} {over} {least} && {seconds} <= {most}"
    return Checked(Rule(cel, f"must be a duration {text}: {DURATION_REMEDY}", holds))


def _objective_holds(value: str) -> bool:
    try:
        return 0.5 < parse_percent(value) < 1.0
    except ValueError:
        return False


_OBJECTIVE = Rule(
    f"self.matches('{PERCENT_PATTERN}')"
    " && double(self.substring(0, self.size() - 1)) > 50.0 && double(self.substring(0, self.size() - 1)) < 100.0",
    "objective must be above 50% and below 100%: write a number and a percent sign, such as 99% or 99.5%",
    _objective_holds,
)


def _share(most_percent: int) -> Checked:
    """A percentage from 0 to a bound."""

    def holds(value: str) -> bool:
        try:
            return 0.0 <= parse_percent(value) <= most_percent / 100.0
        except ValueError:
            return False

    return Checked(
        Rule(
            f"self.matches('{PERCENT_PATTERN}') && double(self.substring(0, self.size() - 1)) <= {most_percent}.0",
            f"must be from 0% to {most_percent}%: write a number and a percent sign, such as 5%",
            holds,
        )
    )


_MODEL_URI = Rule(
    " || ".join(f"self.matches('{pattern}')" for pattern in _MODEL_PATTERNS),
    "uri must be a Hugging Face id (Qwen/Qwen3-8B), an absolute path in the image (/models/chat), pvc://claim/path"
    " or oci://registry/repository:tag",
    lambda text: any(re.fullmatch(pattern[1:-1], text) for pattern in _MODEL_PATTERNS),
)

_COMMIT = "@[0-9a-f]{40}"
_HUB_ID = "[A-Za-z0-9][-A-Za-z0-9._]*/[A-Za-z0-9][-A-Za-z0-9._]*"
_ADAPTER_RULES = (
    matches(
        f"^({_HUB_ID}(@.*)?|/[!-~]+|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[!-~]*)?)$",
        "uri of an adapter must be a Hugging Face id with its commit (org/name@COMMIT), an absolute path in the image"
        " (/adapters/sql) or pvc://claim/path",
    ),
    matches(
        f"^({_HUB_ID}{_COMMIT}|/.*|pvc://.*)$",
        "uri of an adapter on the hub must pin a commit, because a branch or tag may move and replicas would then serve"
        " different adapters: write org/name@COMMIT with the 40 hexadecimal digits of the commit",
    ),
    Rule(
        "!self.matches('(^|/)[.][.](/|$)')",
        "uri of an adapter must not climb out of its folder: remove ..",
        lambda text: re.search("(^|/)[.][.](/|$)", text) is None,
    ),
)

Duration = Annotated[str, StringConstraints(max_length=16)]
LatencyBound = Annotated[Duration, _duration("0s", "1d"), NeedsUnit("write it with a unit, such as 500ms or 1.5s")]
ClassBound = Annotated[Duration, _duration("0s", "1d")]
FinishTime = Annotated[Duration, _duration("1m", "7d")]
Window = Annotated[Duration, _duration("5m", "30d")]
ShutdownTimeout = Annotated[Duration, _duration("1s", "1h")]
StartupTimeout = Annotated[Duration, _duration("10s", "1d")]
LoadDuration = Annotated[Duration, _duration("1s", "1d")]
ClientLag = Annotated[Duration, _duration("0s", "1m")]
Timeout = Annotated[Duration, _duration("1m", "1d")]
Objective = Annotated[
    str, StringConstraints(max_length=16), Checked(_OBJECTIVE), NeedsUnit("write it with a percent sign, such as 99%")
]
ClassObjective = Annotated[str, StringConstraints(max_length=16), Checked(_OBJECTIVE)]
LeastShare = Annotated[str, StringConstraints(max_length=16), _share(50)]
MostShare = Annotated[str, StringConstraints(max_length=16), _share(100)]
ModelUri = Annotated[str, StringConstraints(max_length=512), Checked(_MODEL_URI)]
AdapterUri = Annotated[str, StringConstraints(max_length=512), Checked(*_ADAPTER_RULES)]

ShortText = Annotated[str, StringConstraints(min_length=1, max_length=253)]
PrintableText = Annotated[
    ShortText,
    Checked(matches("^[^\\x00-\\x1f\\x7f]*$", "must not have control characters: remove them")),
]
ImageReference = Annotated[
    str,
    StringConstraints(max_length=512),
    Checked(matches("^[!-~]+$", "image must be an image reference without spaces, such as vllm/vllm-openai:v0.32.0")),
]
AcceleratorName = Annotated[
    str,
    StringConstraints(max_length=50),
    Checked(matches(LABEL_PATTERN, "name must be a DNS label: lower-case letters, digits and '-', such as h100")),
]
ClassName = Annotated[
    str,
    StringConstraints(max_length=63),
    Checked(matches(LABEL_PATTERN, "name must be a DNS label: lower-case letters, digits and '-', such as premium")),
]
ResourceName = Annotated[
    str,
    StringConstraints(max_length=253),
    Checked(matches(_RESOURCE_PATTERN, "resource must be a Kubernetes resource name, such as nvidia.com/gpu")),
]
ObjectName = Annotated[
    str,
    StringConstraints(max_length=253),
    Checked(
        matches(_OBJECT_NAME_PATTERN, "must be the name of a Kubernetes object: lower-case letters, digits, '-', '.'")
    ),
]
HostPath = Annotated[
    str,
    StringConstraints(max_length=1024),
    Checked(matches("^/[!-~]*$", "hostPath must be an absolute path on the node, such as /var/cache/models")),
]
Quantity = Annotated[
    str,
    StringConstraints(max_length=32),
    Checked(matches("^[0-9]+([.][0-9]+)?([numkMGTPE]|[KMGTPE]i)?$", "must be a Kubernetes quantity, such as 200Gi")),
]

MaxSurge = Annotated[
    StrictInt | str,
    WithJsonSchema({"x-kubernetes-int-or-string": True}),
    Checked(
        Rule(
            "type(self) == int ? (self >= 0 && self <= 1000) : self == 'Auto'",
            "maxSurge must be Auto or a number from 0 to 1000: write numbers without quotes",
            lambda value: value == "Auto" or (isinstance(value, int) and 0 <= value <= 1000),
        )
    ),
]

Revision = Annotated[
    StrictInt | str,
    WithJsonSchema({"x-kubernetes-int-or-string": True}),
    Checked(
        Rule(
            "type(self) == int ? self >= 0 : (self.size() > 0 && self.size() <= 63)",
            "must be a whole number of at least 0 or a word of at most 63 characters, such as 2",
            lambda value: 0 <= value <= MOST_WHOLE if isinstance(value, int) else 0 < len(value) <= 63,
        )
    ),
]

Endpoint = Annotated[
    str,
    StringConstraints(max_length=512),
    Checked(
        matches(
            f"^https?://[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:({_PORT}))?(/[-A-Za-z0-9._~%/]*)?$",
            "url must be the address of a server, without user and password, such as http://10.0.0.7:8000",
        )
    ),
]


def map_keyed_by(key: str) -> dict[str, Any]:
    """Schema of a list whose items are identified by a key: it merges item by item under server-side apply."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


FreeForm = dict[str, Any]
_VARIABLE = schema_of("EnvVar")
_NAMED = Rule(
    "has(self.name) && self.name.size() > 0",
    "name is required: set the name of the variable",
    lambda item: bool(item.get("name")),
)

Resources = Annotated[FreeForm, Shaped(schema_of("ResourceRequirements"))]
Toleration = Annotated[FreeForm, Shaped(schema_of("Toleration"))]
EnvironmentVariable = Annotated[
    FreeForm,
    Shaped(
        {
            **_VARIABLE,
            "properties": {**_VARIABLE["properties"], "name": {"type": "string", "maxLength": 253}},
            "required": ["name"],
        }
    ),
    Checked(_NAMED, *environment_rules()),
]
Tolerations = Annotated[tuple[Toleration, ...], Field(max_length=32)]
EnvironmentVariables = Annotated[
    tuple[EnvironmentVariable, ...], Field(max_length=64, json_schema_extra=map_keyed_by("name"))
]


def _without_nulls(value: Any) -> Any:
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


LabelValue = Annotated[str, StringConstraints(max_length=63)]
NodeSelector = Annotated[dict[str, LabelValue], Field(max_length=32), BeforeValidator(_without_nulls)]


def is_service_name(name: str) -> bool:
    """Whether a name can be that of a Service (RFC 1035 label)."""
    return re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name) is not None


def is_label(name: str) -> bool:
    """Whether a name is a DNS label."""
    return re.fullmatch(LABEL_PATTERN[1:-1], name) is not None
