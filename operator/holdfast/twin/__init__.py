"""The digital twin: services on a virtual clock, with the engine model as engines and the policy in the loop."""
