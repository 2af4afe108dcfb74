"""Settings, telemetry, and the wiring of the operator."""
