"""Training of small targets, with vision or without."""
