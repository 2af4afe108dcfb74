"""A rule of the API, written once: checked here by pydantic and by the API server as CEL, with the same message."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

from holdfast.api import quantities

JsonSchema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """What must hold for a value: `cel` for the API server, `holds` for the operator.

    `message` names the field and the remedy. `field` is the path below the value that is at fault, such as `.e2e`.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool]
    field: str = ""

    def to_validation(self) -> JsonSchema:
        """The entry of `x-kubernetes-validations`."""
        place = {"fieldPath": self.field} if self.field else {}
        return {"rule": self.cel, "message": self.message, **place}


class BrokenRule(ValueError):
    """A value that breaks a rule; `field` is the path below the value."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


def require(value: Any, rules: tuple[Rule, ...]) -> None:
    """Raise BrokenRule for the first rule that the value breaks."""
    for rule in rules:
        if not rule.holds(value):
            raise BrokenRule(rule.message, rule.field)


class Checked:
    """Annotation of a value with rules: `Annotated[str, Checked(rule, ...)]`."""

    def __init__(self, *rules: Rule) -> None:
        self._rules = rules

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the rules after the type."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """Add the rules to the schema, after the rules of the type itself."""
        known = handler(schema)
        rules = [*known.get("x-kubernetes-validations", ()), *(rule.to_validation() for rule in self._rules)]
        return {**known, "x-kubernetes-validations": rules}

    def _check(self, value: Any) -> Any:
        require(value, self._rules)
        return value


class NeedsUnit:
    """Annotation, right of `Checked`, of a text that people write as a plain number: those get an answer in words."""

    def __init__(self, remedy: str) -> None:
        message = f"a number without unit: {remedy}"
        self._rule = Rule("type(self) == string", message, lambda value: type(value) not in (int, float))

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Refuse whole numbers before the type does."""
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """A whole number or a string; the rules of the string hold for strings alone."""
        known = {key: value for key, value in handler(schema).items() if key != "type"}
        others = [
            {**rule, "rule": f"type(self) != string || ({rule['rule']})"}
            for rule in known.get("x-kubernetes-validations", ())
        ]
        rules = [self._rule.to_validation(), *others]
        return {**known, "x-kubernetes-int-or-string": True, "x-kubernetes-validations": rules}

    def _check(self, value: Any) -> Any:
        require(value, (self._rule,))
        return value


class ApiModel(BaseModel):
    """A part of the object: immutable, camelCase outside, unknown fields refused, rules over its fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _left_out(cls, value: Any) -> Any:
        """A null says that a field is left out: the API server drops it before it sets defaults."""
        if not isinstance(value, Mapping) or None not in value.values():
            return value
        known = {field.alias for field in cls.model_fields.values()}
        return {key: item for key, item in value.items() if item is not None or key not in known}

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        require(self, self.rules)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """Add the rules to the schema."""
        result = handler(schema)
        if cls.rules:
            handler.resolve_ref_schema(result)["x-kubernetes-validations"] = [
                rule.to_validation() for rule in cls.rules
            ]
        return result


def cel_seconds(value: str) -> str:
    """CEL that turns a well-formed duration into seconds; Kubernetes' own `duration()` knows no days."""
    units = "{'s': 1.0, 'm': 60.0, 'h': 3600.0, 'd': 86400.0}"
    return (
        f"({value}.endsWith('ms') ? double({value}.substring(0, {value}.size() - 2)) / 1000.0"
        f" : double({value}.substring(0, {value}.size() - 1)) * {units}[{value}.substring({value}.size() - 1)])"
    )


def is_duration(value: str) -> str:
    """CEL that is true for a well-formed duration."""
    return f"{value}.matches('{quantities.DURATION_PATTERN}')"
