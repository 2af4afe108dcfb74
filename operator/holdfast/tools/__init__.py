"""What people run beside the operator: measure an endpoint, tune limits, plan sizes, and the reports these write."""
