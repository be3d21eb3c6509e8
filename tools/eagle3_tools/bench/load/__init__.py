"""Load generation for servers: HTTP client, prompts, traffic and metrics."""
