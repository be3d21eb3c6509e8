"""Marks every response made under synthetic acceptance.

The same name everywhere: a header of every response, a field of every generated body and event, a
metric. Without synthetic acceptance none of them is there.
"""

from eagle3_jax.engine import EngineStats

HEADER = "x-synthetic-acceptance-length"


def synthetic_field(stats: EngineStats) -> dict[str, float]:
    """The field of a body; nothing where acceptance is real."""
    length = stats.synthetic_acceptance_length
    return {} if length is None else {"synthetic_acceptance_length": length}


def synthetic_header(stats: EngineStats) -> dict[str, str]:
    """The header of every response, errors included; none where acceptance is real."""
    length = stats.synthetic_acceptance_length
    return {} if length is None else {HEADER: f"{length:g}"}
