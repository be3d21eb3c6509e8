"""Deliberate faults (mutants) in the product, and the tests that must notice each of them.

Each fault is one row of a table in `areas/`: name, source file, text to replace, replacement, and
the nearest tests. `python -m mutants` (`make mutants`) runs the tests against each fault. mutmut
and cosmic-ray do not fit: they generate syntactic mutants of whole modules and choose tests by
coverage or run one command for all, so they cannot take a table of faults with tests.
"""
