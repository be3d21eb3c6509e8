"""`eagle3-train regenerate`: conversations whose answers are the target's own."""
