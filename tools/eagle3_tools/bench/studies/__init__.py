"""The subcommands of eagle3-bench: a module for each, with its flags, its run and its tables."""
