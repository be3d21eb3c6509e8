"""`eagle3-train features`: a directory of what a target shows a draft of a small data set."""
