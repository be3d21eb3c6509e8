"""Tests of the AMD emulator against AMD's documents and other computations."""
