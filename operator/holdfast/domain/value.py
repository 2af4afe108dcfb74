"""Values: what decisions read and say, made by the hundred for each service, and never changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[_Class]) -> type[_Class]:
    """Make a slotted dataclass that the type checker lets nobody change.

    To freeze it at run time as well would make each one six times as dear: fields then are set through a guard.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
