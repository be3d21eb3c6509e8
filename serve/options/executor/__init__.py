"""Who starts the processes of an engine, where it is not the user: vLLM's executor backends."""
