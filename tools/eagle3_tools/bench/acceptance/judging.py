"""Judge answers: compare the letter of a multiple choice, or the words."""

import re

END_OF_THINK = "</think>"
LETTER = "([A-H])"
STATED = (
    re.compile(rf"\\boxed\{{\W*(?:\\text\{{)?{LETTER}\b"),
    re.compile(rf"(?i:\banswer\b\W*(?:is\b\W*)?(?:option\b\W*)?){LETTER}\b"),
    re.compile(rf"(?i:\boption\b)\W*{LETTER}\b"),
    re.compile(rf"\({LETTER}\)"),
)
"""Patterns that state a choice. The first pattern that matches counts, and its last match."""
ALONE = re.compile(rf"\W*{LETTER}\s*(?:[).:,*]|$)")
"""A choice at the beginning of an answer: `B`, `(B)`, `B. two cats`, but not `A cat`."""


def is_right(text: str, expected: str) -> bool:
    """Return whether the text after the reasoning is the expected answer.

    If `expected` is one letter from A to H, the choice that the text states is compared. Otherwise
    the words are compared, ignoring case, whitespace and a final full stop.
    """
    said = text.rpartition(END_OF_THINK)[2].strip()
    if re.fullmatch(LETTER, expected.strip()):
        return chosen(said) == expected.strip()
    return _words(said) == _words(expected)


def chosen(text: str) -> str | None:
    """Return the letter that a text chooses, or None."""
    if begins := ALONE.match(text):
        return begins[1]
    found = (pattern.findall(text) for pattern in STATED)
    return next((letters[-1] for letters in found if letters), None)


def _words(text: str) -> str:
    return " ".join(text.split()).rstrip(".").casefold()
