"""What each autoscaler pays for the objective, on the digital twin: `python -m benchmarks.autoscaling --help`."""
