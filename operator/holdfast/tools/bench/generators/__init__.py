"""Who sends a load: Holdfast's own client, from its bytes upwards, and vLLM's `bench serve`."""
