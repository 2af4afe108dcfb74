"""`holdfast rules`: recording rules and alerts, for Prometheus or the Prometheus Operator."""

from __future__ import annotations

import argparse
import json

from holdfast.monitoring import files


def run(arguments: argparse.Namespace) -> int:
    """Print the rules."""
    document = files.rule_groups(
        arguments.scrape_interval,
        arguments.prometheus_matcher,
        arguments.operator_namespace or "",
        arguments.runbook_base,
    )
    if arguments.prometheus_rule:
        document = files.prometheus_rule(document, arguments.prometheus_rule, dict(arguments.label))
    print(json.dumps(document, indent=2) + "\n" if arguments.json else files.rules_yaml(document), end="")
    return 0
