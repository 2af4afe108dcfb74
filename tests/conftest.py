"""For all unit tests: an example may take as long as it takes, for timing is never asserted here.

What passes and what fails depends on the code alone: the examples are the same in every run. `make explore` draws
others: what it finds becomes an `@example` of the test.
"""

from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("repeatable", settings.default, deadline=None, derandomize=True)
settings.register_profile("explore", settings.default, deadline=None, derandomize=False)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def _unhurried_solver() -> Iterator[None]:
    """What the solver does not find in time is shared out in turn: a crowded machine may not say which of the two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.policy.allocation.solver.MOST_SECONDS", 60.0)
        yield
