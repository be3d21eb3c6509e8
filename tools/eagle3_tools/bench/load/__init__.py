"""Load on servers: the HTTP client, prompts, traffic and metrics."""
