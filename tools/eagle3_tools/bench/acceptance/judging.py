"""Whether an answer is right: the letter of a choice, or the words themselves."""

import re

END_OF_THINK = "</think>"
LETTER = "([A-H])"
STATED = (
    re.compile(rf"\\boxed\{{\W*(?:\\text\{{)?{LETTER}\b"),
    re.compile(rf"(?i:\banswer\b\W*(?:is\b\W*)?(?:option\b\W*)?){LETTER}\b"),
    re.compile(rf"(?i:\boption\b)\W*{LETTER}\b"),
    re.compile(rf"\({LETTER}\)"),
)
"""Where an answer names its choice; what comes first here counts, and of several the last."""
ALONE = re.compile(rf"\W*{LETTER}\s*(?:[).:,*]|$)")
"""An answer that begins with it: `B`, `(B)`, `B. two cats`, but not `A cat`."""


def is_right(text: str, expected: str) -> bool:
    """Whether the text, reasoning left out, is the expected answer.

    Where that is one capital letter from A to H, the choice that the text states counts; otherwise
    the words, whatever their case, spaces and last full stop.
    """
    said = text.rpartition(END_OF_THINK)[2].strip()
    if re.fullmatch(LETTER, expected.strip()):
        return chosen(said) == expected.strip()
    return _words(said) == _words(expected)


def chosen(text: str) -> str | None:
    """The letter that a text chooses, None where it states none."""
    if begins := ALONE.match(text):
        return begins[1]
    found = (pattern.findall(text) for pattern in STATED)
    return next((letters[-1] for letters in found if letters), None)


def _words(text: str) -> str:
    return " ".join(text.split()).rstrip(".").casefold()
