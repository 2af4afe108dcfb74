"""Change batching limits of engines without the fast loop, with a canary replica first."""
