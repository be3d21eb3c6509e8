"""Tool calls in the history of a conversation."""
