"""For all unit tests: an example may take as long as it takes, for timing is never asserted here."""

from hypothesis import settings

settings.register_profile("untimed", settings.default, deadline=None)
settings.load_profile("untimed")
