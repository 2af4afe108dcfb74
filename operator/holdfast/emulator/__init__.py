"""vLLM engines without a GPU, in real time: OpenAI API, vLLM's metrics, and steps as long as the engine model says."""
