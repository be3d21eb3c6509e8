"""Deliberate faults in our GPU path, each of which the twin must show."""
