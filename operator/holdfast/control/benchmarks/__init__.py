"""LLMBenchmark: its Job, its progress, and what its result changes."""
