"""What the fast loop keeps of an overloaded vLLM's goodput, on the real engine."""
