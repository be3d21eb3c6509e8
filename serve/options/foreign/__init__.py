"""The command lines of other engines: their spellings, flags and environment variables."""
