"""What is known of a service from what was observed: arrivals, lengths, capacity, error budget, minimums."""
