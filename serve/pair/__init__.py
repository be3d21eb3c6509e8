"""Load a target and its draft from their directories, and build an engine over them."""
