"""LoRA adapters: variants of one model that its engines serve by names of their own."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field, StrictInt

from holdfast.api import fields
from holdfast.api.classes import ClassTerms, RequestClass
from holdfast.api.rules import ApiModel, Checked, Rule
from holdfast_engine.objectives.rules import MOST_CLASSES

MOST_ADAPTERS = 64
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Those of vLLM but for 1, which no adapter in use has (`MaxLoRARanks`, vllm/config/lora.py)."""
FLAGS = ("--enable-lora", "--lora-modules", "--max-loras", "--max-lora-rank", "--max-cpu-loras")

_RANK_IS_KNOWN = Rule(
    f"self in {list(RANKS)}",
    f"maxRank must be one of {', '.join(map(str, RANKS))}, which vLLM knows: take the next higher one",
    lambda rank: rank in RANKS,
)
_DISTINCT = Rule(
    "self.adapters.all(a, self.adapters.exists_one(b, b.name == a.name))",
    "adapters must have distinct names: rename or remove the duplicate",
    lambda lora: len(lora.names) == len(lora.adapters),
    ".adapters",
)


class Adapter(ApiModel):
    """A LoRA adapter."""

    name: fields.ClassName
    """Name that clients send as the model."""
    uri: fields.AdapterUri
    """Hugging Face id with its commit (org/name@COMMIT), absolute path in the image, or pvc://claim/path."""
    slo: ClassTerms | None = None
    """Objectives of the requests for this adapter, which are then a class with its name. Default: the service's."""

    @property
    def own_class(self) -> RequestClass | None:
        """The class that its name selects; None where the service's objectives hold."""
        return None if self.slo is None else RequestClass.model_construct(name=self.name, **dict(self.slo))


class Lora(ApiModel):
    """LoRA adapters that every replica has before it is Ready."""

    rules = (_DISTINCT,)

    adapters: Annotated[
        tuple[Adapter, ...],
        Field(min_length=1, max_length=MOST_ADAPTERS, json_schema_extra=fields.map_keyed_by("name")),
    ]
    """The adapters, 1 to 64."""
    max_rank: Annotated[StrictInt, Checked(_RANK_IS_KNOWN)] = 16
    """Highest rank of an adapter (vLLM --max-lora-rank): 8, 16, 32, 64, 128, 256, 320 or 512."""
    max_loaded: Annotated[StrictInt, Field(ge=1, le=MOST_ADAPTERS)] | None = None
    """How many adapters the GPU holds at once, and one step serves (vLLM --max-loras). Default: all."""

    @property
    def names(self) -> frozenset[str]:
        """The names of all adapters."""
        return frozenset(each.name for each in self.adapters)

    @property
    def loaded(self) -> int:
        """How many adapters the GPU holds at once."""
        return self.max_loaded or len(self.adapters)

    @property
    def ranks(self) -> int:
        """Ranks that the GPU has room for, over all adapters that it holds at once."""
        return self.loaded * self.max_rank

    @property
    def classes(self) -> tuple[RequestClass, ...]:
        """The classes of adapters with objectives."""
        return tuple(found for each in self.adapters if (found := each.own_class) is not None)


NAMED_APART = Rule(
    "!has(self.lora) || self.lora.adapters.all(a, a.name != (has(self.servedName) ? self.servedName : self.uri))",
    "an adapter must not have the name of the model, because clients choose by name: rename the adapter, or set"
    " servedName",
    lambda model: model.lora is None or model.served_model_name not in model.lora.names,
    ".lora.adapters",
)
_WITH_SLO = "self.model.lora.adapters.exists(a, has(a.slo))"
# How they begin, in both spellings: the API server estimates the cost of a pattern beyond what it allows.
_BEGINNINGS = tuple(
    f"--{words}"
    for name in ("enable-lora", "lora-modules", "max-lora", "max-cpu-loras")
    for words in (name, name.replace("-", "_"))
)
_ARGUED = "exists(a, " + " || ".join(f"a.startsWith('{each}')" for each in _BEGINNINGS) + ")"


def _given(cel: str, message: str, holds: Callable[[Any, Lora], bool], field: str = ".adapters") -> Rule:
    return Rule(
        f"!has(self.model.lora) || {cel}",
        message,
        lambda spec: spec.model.lora is None or holds(spec, spec.model.lora),
        f".model.lora{field}",
    )


def _has_flags(arguments: tuple[str, ...]) -> bool:
    return any(each.startswith(_BEGINNINGS) for each in arguments)


LORA_RULES = (
    _given(
        "!has(self.slo.classes) || self.model.lora.adapters.all(a, !self.slo.classes.exists(c, c.name == a.name))",
        "an adapter must not have the name of a class in slo.classes, because both are values of one label: rename one",
        lambda spec, lora: lora.names.isdisjoint(each.name for each in spec.slo.classes),
    ),
    _given(
        "(has(self.slo.classes) ? self.slo.classes.size() : 0) + "
        f"self.model.lora.adapters.filter(a, has(a.slo)).size() <= {MOST_CLASSES}",
        f"slo.classes and adapters with an slo must be at most {MOST_CLASSES} together: remove slo from an adapter",
        lambda spec, lora: len(spec.slo.classes) + len(lora.classes) <= MOST_CLASSES,
    ),
    _given(
        f"!has(self.engine) || !has(self.engine.plugin) || self.engine.plugin != 'Disabled' || !{_WITH_SLO}",
        "slo of an adapter and engine.plugin Disabled exclude each other, because only engines with Holdfast's plugin"
        " judge requests by adapter: remove slo from the adapter, or engine.plugin Disabled",
        lambda spec, _: spec.engine.plugin != "Disabled" or not spec.adapter_classes,
    ),
    _given(
        "!has(self.engine) || !has(self.engine.frontEnd) || self.engine.frontEnd != 'Rust'",
        "model.lora and engine.frontEnd Rust exclude each other, because adapters were not tried there: remove"
        " model.lora, or engine.frontEnd Rust",
        lambda spec, _: not spec.engine.has_rust_front_end,
        "",
    ),
    _given(
        f"(!has(self.engine) || !has(self.engine.args) || !self.engine.args.{_ARGUED})"
        f" && !self.accelerators.exists(x, has(x.args) && x.args.{_ARGUED})",
        f"model.lora and arguments for adapters exclude each other: remove {', '.join(FLAGS)} from args",
        lambda spec, _: not any(map(_has_flags, (spec.engine.args, *(each.args for each in spec.accelerators)))),
        "",
    ),
)
"""What adapters ask of other fields of a spec with a model."""
