"""Lifecycle of an LLMBenchmark, and whether its result is used."""
