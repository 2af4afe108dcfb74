"""Measuring a live OpenAI-compatible endpoint: load behind one port, and one set of formulas over what came back."""
