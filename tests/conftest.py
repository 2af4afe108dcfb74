"""For all unit tests: an example may take as long as it takes, for timing is never asserted here.

What passes and what fails depends on the code alone: the examples are the same in every run. `make explore` draws
others: what it finds becomes an `@example` of the test. `few` is for the copies of tests that a test runs.
"""

from hypothesis import settings

settings.register_profile("repeatable", settings.default, deadline=None, derandomize=True)
settings.register_profile("explore", settings.default, deadline=None, derandomize=False)
settings.register_profile("few", settings.default, deadline=None, derandomize=True, max_examples=10)
settings.load_profile("repeatable")
