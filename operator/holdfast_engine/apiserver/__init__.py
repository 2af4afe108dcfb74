"""What the API server does with a request before the engine has it: which requests are admitted."""
