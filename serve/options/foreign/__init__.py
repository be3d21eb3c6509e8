"""Command lines of other engines: their spellings, flags and environment variables."""
