"""What the answers of Prometheus say of a service: traffic, counts, facts of its engines, and how good they are."""
