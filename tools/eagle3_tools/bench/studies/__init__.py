"""What eagle3-bench measures: a module for each command, with its flags, its run and its tables."""
