"""`eagle3-train regenerate`: replace the answers of conversations by a served target's own."""
