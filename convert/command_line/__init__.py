"""Code that all commands share: reading flags, showing help and handling signals."""
