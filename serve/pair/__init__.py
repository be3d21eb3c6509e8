"""A target and its draft, loaded from their directories, and an engine over them."""
