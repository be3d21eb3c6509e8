"""OpenAI's endpoints, with vLLM's extensions."""
