"""LLMService and decision to manifests, without I/O."""
