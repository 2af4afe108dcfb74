"""The LLMService API: types, reasons, and the CRD generated from them."""
