"""The one model of a vLLM replica: step law, scheduler loop, capacity."""
