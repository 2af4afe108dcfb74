"""Write the chart's rules and dashboards anew: `python -m tests.monitoring.regenerate`, then read the diff."""

from __future__ import annotations

from pathlib import Path

from holdfast.monitoring import files

PLACE = "RELEASE_NAMESPACE"
"""What the chart replaces by the namespace of its release."""

FOLDER = Path(__file__).parents[2] / "charts" / "holdfast" / "files" / "monitoring"


def generated() -> dict[str, str]:
    """The text of each file by its name."""
    return {"rules.yaml": files.rules_yaml(files.rule_groups(operator_namespace=PLACE)), **files.dashboard_files()}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in generated().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
