"""What a whole spec asks of the nodes, checked against the operator's settings."""

from collections.abc import Collection

from holdfast.api.llmservice import LLMServiceSpec
from holdfast.api.template_rules import refusal, validate_template


def refused_privileges(spec: LLMServiceSpec, allowed: Collection[str]) -> list[str]:
    """Every privilege of a valid spec that the operator does not allow, as `field: remedy`; empty when there is none.

    The API server cannot know these settings, so they become Ready=False/Invalid instead of a refusal.
    """
    problems = [f"spec.{problem}" for problem in validate_template(spec.template or {}, allowed)]
    for accelerator in spec.accelerators:
        place = f"spec.accelerators[{accelerator.name}]"
        problems += [f"{place}.{problem}" for problem in validate_template(accelerator.template or {}, allowed)]
    # The same mount of the node as a template's volume, only shorter to write.
    if spec.model.cache.host_path is not None and "hostPath" not in allowed:
        problems.append(refusal("spec.model.cache.hostPath", "hostPath"))
    return problems
