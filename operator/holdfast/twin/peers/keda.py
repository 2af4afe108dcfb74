"""llm-d's KEDA recipes, which took the place of its operator.

Source: llm-d/llm-d, guides/workload-autoscaling: keda-epp/README.md and optimized-baseline/base/scaledobject.yaml
(queue), keda-epp-token-aware/README.md (tokens), README.slo-aware.md at d38c9f0c (SLO).
The twin has no endpoint picker: requests that it would hold in its flow control wait in the engines instead.
"""

from __future__ import annotations

import math
from collections import deque

from holdfast.domain.service import ServiceKey
from holdfast.twin.peers.behavior import Behavior, Steps, average_value
from holdfast.twin.peers.peer import Peer, positive
from holdfast.twin.pods.peer_metrics import Sight


class KedaQueue(Peer):
    """The larger of requests in flight / 16 and requests that wait / 1, at most double in 15 s.

    The knob is the 16, the 1 goes along.
    """

    name = "keda-queue"
    behavior = Behavior(up=Steps(100.0, None, 15.0, 0.0))
    _inflight, _waiting = 16.0, 1.0

    def __init__(self, inflight: float = _inflight) -> None:
        super().__init__()
        self._target = positive(self.name, "inflight", inflight)

    def wanted(self, key: ServiceKey, seen: Sight, now: float) -> int:
        """Replicas by the law alone."""
        return max(
            average_value(seen.running + seen.waiting, self._target, seen.size),
            average_value(seen.waiting, self._waiting * self._target / self._inflight, seen.size),
        )


class KedaToken(Peer):
    """The larger of seconds of prompts to prefill / threshold and the sum of KV usage / 0.8; one up per 3 min.

    Prompt tokens are the ones that are not cached. As its README asks, the threshold is what the TTFT objective
    leaves after a mean prompt's own prefill; the file's 1.5 s, for about 2 s, where it leaves nothing. V_P, prefill
    tokens/s of an engine, is measured by the recipe's calibrate.sh; here the step times say it. The knob is the 0.8,
    the threshold goes along.
    """

    name = "keda-token"
    behavior = Behavior(up=Steps(None, 1, 180.0, 0.0), down=Steps(None, 1, 300.0, 300.0))
    _usage, _seconds = 0.8, 1.5

    def __init__(self, kv: float = _usage) -> None:
        super().__init__()
        self._target = positive(self.name, "kv", kv)

    def wanted(self, key: ServiceKey, seen: Sight, now: float) -> int:
        """Replicas by the law alone."""
        per_token = (1.0 - seen.cached_share) / prefill_tokens_per_second(seen)
        left = seen.slo.ttft_seconds - seen.prompt_tokens * per_token
        seconds = (left if left > 0.0 else self._seconds) * self._target / self._usage
        return max(
            average_value(seen.queued_tokens * per_token, seconds, seen.size),
            average_value(sum(seen.kv_usage), self._target, seen.size),
        )


def prefill_tokens_per_second(seen: Sight) -> float:
    """Tokens of full steps of nothing but prompts."""
    tokens = seen.shape.max_num_batched_tokens
    return tokens / seen.shape.timer.step_seconds(((tokens, 0),), 0, 0.0)


class KedaSlo(Peer):
    """P90 of TTFT and TPOT over the objectives, kept in a band of 0.40 to 0.55 by sizing in proportion.

    s is the mean of 45 s of min(larger ratio, 2), nothing measured is 0. Credit c for starting pods. The HPA reads the
    size as an AverageValue of 1, so that it leaves one of ten as it is. Up to double or four more per minute, down one
    per two minutes. The knob is the 0.55, the 0.40 goes along.
    """

    name = "keda-slo"
    behavior = Behavior(up=Steps(100.0, 4, 60.0, 30.0), down=Steps(None, 1, 120.0, 180.0))
    sees_percentiles = True
    _high, _low, _cap, _samples = 0.55, 0.40, 2.0, 3

    def __init__(self, band: float = _high) -> None:
        super().__init__()
        self._target = positive(self.name, "band", band)
        self._seen: dict[ServiceKey, deque[float]] = {}

    def wanted(self, key: ServiceKey, seen: Sight, now: float) -> int:
        """Replicas by the law alone."""
        raw = max(
            (seen.ttft_p90_seconds or 0.0) / seen.slo.ttft_seconds,
            (seen.tpot_p90_seconds or 0.0) / seen.slo.tpot_seconds,
        )
        samples = self._seen.setdefault(key, deque(maxlen=self._samples))
        samples.append(min(raw, self._cap))
        return average_value(self.law(sum(samples) / len(samples), seen.size, seen.ready), 1.0, seen.size)

    def law(self, saturation: float, replicas: int, ready: int) -> int:
        """Replicas by the smoothed ratio."""
        high, low = self._target, self._target * self._low / self._high
        credit = ready / replicas if 0 < ready < replicas else 1.0
        if saturation > high:
            return replicas + math.ceil(replicas * (saturation * credit / high - 1.0))
        if saturation < low:
            return replicas - math.floor(replicas * (1.0 - saturation / low))
        return replicas
