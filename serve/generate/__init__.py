"""The command eagle3-generate: prompts in, text or JSON lines out."""
