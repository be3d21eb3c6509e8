"""Other libraries' implementations of a case."""

FLEX = "torch flex_attention"
"""A peer that compiles for up to a minute: it is measured once, after all cases."""
