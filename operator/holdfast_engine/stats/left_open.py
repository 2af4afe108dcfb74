"""What an engine that was killed in this container left without a verdict, from the files that outlive it."""

from __future__ import annotations

import logging
import math
from pathlib import Path

from holdfast_engine.clients.written_file import begun_since
from holdfast_engine.objectives.rules import SERVICE_CLASS
from holdfast_engine.stats.classfiles import read_classes
from holdfast_engine.stats.stats_fields import FIELDS, Mode
from holdfast_engine.stats.statsfile import read_stats

MOST_LEFT = 1_000_000
"""More requests than any engine holds: such a number is no count."""

logger = logging.getLogger("vllm.holdfast")


def left_open(stats: Path, written: Path | None = None) -> dict[str, int]:
    """Requests without a verdict in the last record of each class; to be read before the files are replaced.

    The API server may have reported further ones in `written` since: they came during the last step, and count for the
    service. With several engines, or batch, it is not known whose they are.

    Where there is no record, or no number in it, nothing is known and nothing is counted: so it is where the plugin was
    off. Batch is left out, nobody waits for it, and its counts begin anew together.
    """
    own = read_stats(stats, len(FIELDS))
    unjudged = math.nan if own is None else own[FIELDS.index("unjudged")]
    if own is None or not math.isfinite(unjudged):
        return {}
    classes = read_classes(stats)
    found = {name: each["unjudged"] for name, each in classes.items() if not each["is_batch"]}
    taken, is_active = own[FIELDS.index("reports_taken")], own[FIELDS.index("mode")] == Mode.ACTIVE
    is_alone = len(list(stats.parent.glob("engine-*.stats"))) == 1 and len(found) == len(classes)
    if written is not None and math.isfinite(taken) and is_active and is_alone:
        unjudged += begun_since(written, int(taken))
    found[SERVICE_CLASS] = unjudged
    left = {name: int(count) for name, count in found.items() if math.isfinite(count) and 0 < count <= MOST_LEFT}
    if left:
        logger.warning("holdfast: the engine before this one was killed with %d open requests", sum(left.values()))
    return left
