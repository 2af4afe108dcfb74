"""Immutable values for decisions, created by the hundred for each service."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[_Class]) -> type[_Class]:
    """Make a slotted dataclass that is frozen for the type checker only.

    Freezing at run time would make each construction six times as expensive: every field is set through a guard.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
