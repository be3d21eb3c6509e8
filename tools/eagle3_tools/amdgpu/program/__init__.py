"""Read compiled programs as XLA serialises them, and execute them step by step."""
