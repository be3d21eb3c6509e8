"""Helpers for grammars in llguidance's dialect of Lark."""

import re

SLASH = re.compile(r"(\\.)|/", re.DOTALL)
"""An unescaped slash, which ends a regular expression; group 1 is an escaped character."""


def regex_body(pattern: str) -> str:
    """Return a regular expression as the body of a /literal/, with its newlines escaped."""

    def written(found: re.Match[str]) -> str:
        pair = found[1] or "\\/"
        return "\n" if pair == "\\\n" else pair

    return SLASH.sub(written, pattern).replace("\n", "\\n")
