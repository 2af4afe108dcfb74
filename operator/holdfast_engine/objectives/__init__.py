"""What is asked of an engine: objectives, limits and classes, and how a request is judged by them."""
