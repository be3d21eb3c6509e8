"""The embedded pair on a GPU: its bare round, its serving loop, and what they launch."""
