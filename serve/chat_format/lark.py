"""Pieces of grammars in llguidance's Lark."""

import re

SLASH = re.compile(r"(\\.)|/", re.DOTALL)
"""What ends a regular expression; group 1: a pair that does not."""


def regex_body(pattern: str) -> str:
    """A regular expression as it stands between slashes, where a newline can't; an escaped one is
    one too."""

    def written(found: re.Match[str]) -> str:
        pair = found[1] or "\\/"
        return "\n" if pair == "\\\n" else pair

    return SLASH.sub(written, pattern).replace("\n", "\\n")
