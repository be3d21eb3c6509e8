"""Parts of `eagle3-bench gpu`: the embedded pair's round, its serving loop, kernel launches."""
