"""`eagle3-train features`: write the target's features of a small data set to a directory."""
