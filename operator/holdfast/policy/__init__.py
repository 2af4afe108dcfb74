"""Pure decisions: snapshot and memory in, decision and reason out."""

from holdfast.policy.decide import decide, decide_alone
from holdfast.policy.memory import FleetContext, Memory
from holdfast.policy.settings import PolicySettings

__all__ = ["FleetContext", "Memory", "PolicySettings", "decide", "decide_alone"]
