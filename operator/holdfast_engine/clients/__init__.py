"""What clients see of their requests: when tokens were written, and which requests were good."""
