"""Which nodes are closed to whom, by Kubernetes' own rules (component-helpers/scheduling/corev1, ToleratesTaint)."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.domain.value import value

CLOSING = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep new pods away; the others are wishes."""


@value
class Taint:
    """What a node keeps pods away by."""

    key: str
    value: str
    effect: str


@value
class Toleration:
    """Taints that a pod takes no notice of; an empty key or effect stands for any."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether the taint keeps no pod away that has this."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (self.operator == "Equal" and self.value == taint.value)


def are_tolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration], resource: str) -> bool:
    """Whether pods that ask for an extended resource may run on a node with these taints.

    A taint of the resource's own name keeps nobody away who asks for it: clusters that use it tolerate it themselves
    (admission plugin ExtendedResourceToleration).
    """
    given = tuple(tolerations)
    return all(taint.key == resource or any(each.covers(taint) for each in given) for taint in taints)
