"""Where special texts begin in others, found in one pass and never in one long call.

A single search of a long text would hold Python's lock, and with it everybody else, until its end.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

WINDOW = 2**18
"""Characters that one call searches."""
END = ""
"""In a tree of characters: a text ends here."""


class SpecialTexts:
    """The special texts of a tokenizer."""

    def __init__(self, texts: Sequence[str]) -> None:
        tree = _tree(texts)
        self._longest = max(map(len, texts), default=1)
        self._pattern = re.compile(_any_of(tree) if tree else "(?!)")
        # Of every text the first character alone is taken, so that texts that overlap are all seen.
        heads = [f"{re.escape(char)}(?={_any_of(rest)})" for char, rest in tree.items()]
        self._heads = re.compile("|".join(heads) or "(?!)")
        edges = {char for text in texts for char in (text[:1], text[-1:])}
        self._edges = re.compile(f"[{re.escape(''.join(edges))}]" if edges else "(?!)")
        self._begun = frozenset(text[:size] for text in texts for size in range(1, len(text)))
        self._ended = frozenset(text[-size:] for text in texts for size in range(1, len(text)))

    def split(self, text: str) -> Iterator[str]:
        """Plain and special by turns; the longest where one begins with another."""
        done = 0
        for match in self._found(self._pattern, text):
            yield text[done : match.start()]
            yield match[0]
            done = match.end()
        yield text[done:]

    def broken(self, text: str, mark: str) -> str:
        """The text with the mark inside every special text.

        Also where the text ends or begins with a part of one, which a neighbour could make whole.
        """
        if not self._edges.search(text):
            return text
        pieces, done = [mark] if self._any_in(self._ended, text, at_end=False) else [], 0
        for match in self._found(self._heads, text):
            pieces += [text[done : match.end()], mark]
            done = match.end()
        pieces += [text[done:], mark if self._any_in(self._begun, text, at_end=True) else ""]
        return "".join(pieces)

    def _found(self, pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
        done = 0
        for start in range(0, len(text), WINDOW):
            end = start + WINDOW
            for match in pattern.finditer(text, max(start, done), end + self._longest):
                if match.start() >= end:
                    break
                done = match.end()
                yield match

    def _any_in(self, parts: frozenset[str], text: str, *, at_end: bool) -> bool:
        sizes = range(1, min(self._longest, len(text) + 1))
        return any((text[-size:] if at_end else text[:size]) in parts for size in sizes)


def _tree(texts: Sequence[str]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for text in filter(None, texts):
        node = root
        for char in text:
            node = node.setdefault(char, {})
        node[END] = {}
    return root


def _any_of(node: dict[str, Any]) -> str:
    """An expression for every way on from a node: the number of texts costs a search nothing."""
    chain = []
    while len(node) == 1 and END not in node:
        ((char, node),) = node.items()
        chain.append(re.escape(char))
    ways = [re.escape(char) + _any_of(rest) for char, rest in node.items() if char != END]
    branches = f"(?:{'|'.join(ways)})" if ways else ""
    return "".join(chain) + branches + ("?" if ways and END in node else "")
