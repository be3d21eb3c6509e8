"""Calls of tools as a conversation tells them again."""
