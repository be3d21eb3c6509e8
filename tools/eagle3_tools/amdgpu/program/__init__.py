"""Compiled programs as XLA serialises them, read and executed step by step."""
