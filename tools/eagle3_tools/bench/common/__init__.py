"""What several studies share: conditions, flags, records, prompts, tables."""
