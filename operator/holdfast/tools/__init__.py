"""What people run themselves: measure an endpoint, tune limits, plan sizes, and the reports these write."""
