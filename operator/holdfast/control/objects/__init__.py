"""Which objects a decision asks for."""
