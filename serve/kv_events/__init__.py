"""Changes of the prefix index, told to routers as vLLM tells them."""
