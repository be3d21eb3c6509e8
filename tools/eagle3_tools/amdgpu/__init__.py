"""Executes the machine code of MI355X and MI325X on a CPU."""
