"""The LLMService API: the types a user writes, the CRD generated from them, conditions and reasons."""
