"""Finding the batching limits under which an engine carries most: few trials, proposed by the engine's model."""
