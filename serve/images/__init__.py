"""Images of requests: where they may come from, their limits, and what the engine gets of them."""
