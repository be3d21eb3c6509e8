"""Tokenizers and chat templates of published checkpoints, read as data."""
