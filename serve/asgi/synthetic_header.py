"""Marks every response made under synthetic acceptance.

A header of every response, a field of every generated body and event, and a metric have the same
name. Without synthetic acceptance all three are absent.
"""

from eagle3_jax.engine import EngineStats

HEADER = "x-synthetic-acceptance-length"


def synthetic_field(stats: EngineStats) -> dict[str, float]:
    """Return the field for a body, or {} if acceptance is real."""
    length = stats.synthetic_acceptance_length
    return {} if length is None else {"synthetic_acceptance_length": length}


def synthetic_header(stats: EngineStats) -> dict[str, str]:
    """Return the header for a response, errors included, or {} if acceptance is real."""
    length = stats.synthetic_acceptance_length
    return {} if length is None else {HEADER: f"{length:g}"}
