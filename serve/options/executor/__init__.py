"""vLLM's executor backends: flags of engines whose processes other software starts."""
