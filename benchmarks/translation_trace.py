"""The requests of docs/howto/translation.md.

    python -m benchmarks.translation_trace > examples/traces/translation.csv

Made, not recorded: documents of 10 to 200 tokens, each length as likely as any other, translations of 0.8 to 1.25 times
as many (10 to 200), Poisson arrivals. On the emulated GPU of that page this rate keeps some 25 requests under way.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

REQUESTS, RATE_RPS, SEED = 1140, 38.0, 1
SHORTEST, LONGEST = 10, 200
GROWTH = (0.8, 1.25)


def rows() -> Iterator[str]:
    """The lines of the file."""
    drawn, at = random.Random(SEED), 0.0
    yield "arrival_seconds,prompt_tokens,output_tokens"
    for _ in range(REQUESTS):
        at += drawn.expovariate(RATE_RPS)
        prompt = drawn.randint(SHORTEST, LONGEST)
        output = min(LONGEST, max(SHORTEST, round(prompt * drawn.uniform(*GROWTH))))
        yield f"{at:.3f},{prompt},{output}"


if __name__ == "__main__":
    print("\n".join(rows()))
