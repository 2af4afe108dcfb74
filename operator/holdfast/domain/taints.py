"""Taints and tolerations by Kubernetes' own rules (component-helpers/scheduling/corev1, ToleratesTaint)."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.domain.value import value

CLOSING = frozenset({"NoSchedule", "NoExecute"})
"""Taint effects that repel new pods; PreferNoSchedule is only a preference."""


@value
class Taint:
    """A taint of a node."""

    key: str
    value: str
    effect: str


@value
class Toleration:
    """A toleration of a pod; an empty key or effect matches any."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether this toleration tolerates the taint."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (self.operator == "Equal" and self.value == taint.value)


def are_tolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration], resource: str) -> bool:
    """Whether pods that ask for an extended resource may run on a node with these taints.

    A taint with the resource's own name does not repel pods that request the resource: such clusters add the toleration
    themselves (admission plugin ExtendedResourceToleration).
    """
    given = tuple(tolerations)
    return all(taint.key == resource or any(each.covers(taint) for each in given) for taint in taints)
