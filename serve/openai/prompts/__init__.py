"""Converts the fields of a chat to its prompt."""
