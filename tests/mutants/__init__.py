"""Deliberate faults in the product, and the tests that must notice each of them.

Each fault is one row of a table in `areas/`: its name, a source file, the text to replace, the
replacement, and the nearest tests. `python -m mutants` (`make mutants`) runs the tests against each
fault. mutmut and cosmic-ray do not fit: they generate syntactic mutants of whole modules and choose
tests by coverage or run one command for all, so they take neither a table of faults nor its tests.
"""
