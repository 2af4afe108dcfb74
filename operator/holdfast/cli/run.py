"""`holdfast run`: the operator."""

from __future__ import annotations

import argparse
import os
import sys

from holdfast.runtime import settings


def run(arguments: argparse.Namespace) -> int:
    """Run until leadership is lost or a signal comes; 2 for settings that make no sense."""
    try:
        wanted = settings.read_settings(arguments, os.environ)
    except settings.SettingsError as error:
        print(f"holdfast run: {error}", file=sys.stderr)
        return 2
    from holdfast.runtime import wiring  # the Kubernetes client loads only once the settings make sense

    return wiring.run(wanted)
