"""What all commands share: how they read their flags, explain them, and end."""
