"""What the fields of a chat become in its prompt."""
