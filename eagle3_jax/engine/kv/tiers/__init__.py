"""Memory tiers below HBM, to and from which pages of the prefix cache are copied."""
