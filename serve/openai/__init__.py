"""OpenAI's endpoints, with vLLM's additions."""
