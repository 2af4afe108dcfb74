"""Write tests/golden anew: `python -m tests.render.regenerate`, then read the diff."""

from __future__ import annotations

from pathlib import Path

import yaml

from holdfast.rendered.names import Manifest
from tests.render.scenes import golden_scenes

GOLDEN = Path(__file__).parents[1] / "golden"


class _Plain(yaml.SafeDumper):
    """YAML without anchors, as people write it."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def as_yaml(manifests: tuple[Manifest, ...]) -> str:
    """The text of a golden file."""
    return yaml.dump_all(manifests, Dumper=_Plain, sort_keys=False, width=120)


if __name__ == "__main__":
    for name, manifests in golden_scenes().items():
        (GOLDEN / f"manifests-{name}.yaml").write_text(as_yaml(manifests), encoding="utf-8")
