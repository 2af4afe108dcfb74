"""Pages, pictures and tables that the tools write."""
