"""The fast loop inside vLLM: order of the waiting requests, live limits, exact counts of good requests."""

VERSION = "0.1.0"
