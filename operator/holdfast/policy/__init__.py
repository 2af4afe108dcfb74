"""Pure decisions: snapshot and memory in, decision and reason out."""

from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from holdfast.policy.settings import PolicySettings

__all__ = ["Memory", "PolicySettings", "decide"]
