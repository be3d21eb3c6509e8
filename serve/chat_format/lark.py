"""Pieces of grammars in llguidance's Lark."""

import re

SLASH = re.compile(r"(\\.)|/", re.DOTALL)
"""What ends a regular expression; group 1: a pair that does not."""


def regex_body(pattern: str) -> str:
    """A regular expression as it stands between slashes."""
    return SLASH.sub(lambda found: found[1] or "\\/", pattern).replace("\n", "\\n")
