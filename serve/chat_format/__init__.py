"""How models write reasoning and tool calls; knows nothing of HTTP and its bodies."""
