"""From a manifest or a watch event to a typed object, with every problem in words."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import pydantic

from holdfast.api.pod_schema import MOST_WHOLE, UNKNOWN_FIELD
from holdfast.api.rules import ApiModel, BrokenRule

Parsed = TypeVar("Parsed", bound=ApiModel)

_REMEDIES = {
    "missing": "is required: add it",
    "extra_forbidden": UNKNOWN_FIELD,
    "float_type": "must be a valid number: write it without quotes, currency and unit, such as 2.5",
    "int_type": "must be a valid integer: write it without quotes and unit, such as 2",
    "bool_type": "must be a valid boolean: write true or false, without quotes",
    "string_type": "must be a valid string: put quotes around it",
}
_READ_AS_BOOLEAN = "; YAML reads On, Off, Yes and No without quotes as true or false"
_MOST_LEVELS = 64
_SHOWN_LEVELS = 8


class _TooDeep(ValueError):
    """The path of a value that is nested too deeply."""


class InvalidObject(ValueError):
    """A body that is no such object; the message names every field at fault and the remedy."""


def parsed(model: type[Parsed], body: Mapping[str, Any], invalid: type[InvalidObject] = InvalidObject) -> Parsed:
    """The typed object of a manifest or a watch event; raises `invalid`."""
    try:
        return model.model_validate(_plain(body), by_alias=True, by_name=False)
    except pydantic.ValidationError as error:
        raise invalid("; ".join(sorted(problems(error)))) from None
    except _TooDeep as error:
        raise invalid(
            f"{error}: has more than {_MOST_LEVELS} levels: remove what is below it, or the YAML alias that contains it"
        ) from None


def problems(error: pydantic.ValidationError) -> list[str]:
    """Each field at fault, what is wrong with it and the remedy, in the order of the fields."""
    return [_problem(each) for each in _faults(error.errors())]


def _plain(value: Any, path: tuple[object, ...] = ()) -> Any:
    """Plain dicts, lists and numbers: watch events arrive as read-only mapping views, and 1.0 is 1 in JSON."""
    if len(path) > _MOST_LEVELS:
        raise _TooDeep(".".join(map(str, path[:_SHOWN_LEVELS])))
    if isinstance(value, Mapping):
        return {key: _plain(item, (*path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, (*path, index)) for index, item in enumerate(value)]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= MOST_WHOLE else value


def _faults(errors: Sequence[Any]) -> list[Any]:
    """Without lists that are too short because of a faulty item alone: pydantic counts only what is valid."""
    places = [tuple(each["loc"]) for each in errors]

    def follows(each: Any) -> bool:
        depth = len(each["loc"])
        return any(len(place) > depth and place[:depth] == tuple(each["loc"]) for place in places)

    return [each for each in errors if each["type"] != "too_short" or not follows(each)]


def _problem(error: Any) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).lstrip(".")
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, BrokenRule):
        return f"{path}{cause.field}: {cause}".lstrip(":. ")
    said = _REMEDIES.get(error["type"], error["msg"].removeprefix("Value error, "))
    is_word = error["type"] in ("literal_error", "string_type") and isinstance(error.get("input"), bool)
    return f"{path}: {said}{_READ_AS_BOOLEAN if is_word else ''}"
