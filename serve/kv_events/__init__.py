"""Publish changes of the prefix index to routers in vLLM's format."""
