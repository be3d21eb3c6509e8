"""Formats in which models write reasoning and tool calls, independent of HTTP and its bodies."""
