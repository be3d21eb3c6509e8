"""Emulator that runs machine code for MI355X and MI325X on a CPU, and checks that use it."""
