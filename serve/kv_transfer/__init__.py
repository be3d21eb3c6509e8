"""Transfer prompts' pages from the server that prefilled them to the server that decodes."""
