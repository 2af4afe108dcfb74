"""Other autoscalers' laws as policies of the twin, with the constants that their makers ship."""
