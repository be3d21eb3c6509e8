"""The command eagle3-convert: plan, print, write and verify a conversion."""
