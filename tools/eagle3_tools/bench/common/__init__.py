"""Code shared by several studies: conditions, flags, records, prompts, tables."""
