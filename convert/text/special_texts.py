"""Find special texts in other texts, in one pass and in short calls.

A single search of a long text would hold the GIL until its end.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

WINDOW = 2**18
"""Maximum characters that one call searches."""
END = ""
"""Key for the end of a text in a tree of characters."""


class SpecialTexts:
    """The special texts of a tokenizer."""

    def __init__(self, texts: Sequence[str]) -> None:
        tree = _tree(texts)
        self._longest = max(map(len, texts), default=1)
        self._pattern = re.compile(_any_of(tree) if tree else "(?!)")
        # Match only the first character of each text, so that overlapping texts are all found.
        heads = [f"{re.escape(char)}(?={_any_of(rest)})" for char, rest in tree.items()]
        self._heads = re.compile("|".join(heads) or "(?!)")
        edges = {char for text in texts for char in (text[:1], text[-1:])}
        self._edges = re.compile(f"[{re.escape(''.join(edges))}]" if edges else "(?!)")
        self._begun = frozenset(text[:size] for text in texts for size in range(1, len(text)))
        self._ended = frozenset(text[-size:] for text in texts for size in range(1, len(text)))

    def split(self, text: str) -> Iterator[str]:
        """Yield plain and special texts in turn; of special texts at one place, the longest."""
        done = 0
        for match in self._found(self._pattern, text):
            yield text[done : match.start()]
            yield match[0]
            done = match.end()
        yield text[done:]

    def broken(self, text: str, mark: str) -> str:
        """Insert the mark into every special text.

        A part at the text's begin or end, which a neighbour could complete, gets a mark too.
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
    """Return a pattern of all texts below a node; the number of texts does not slow a search."""
    chain = []
    while len(node) == 1 and END not in node:
        ((char, node),) = node.items()
        chain.append(re.escape(char))
    ways = [re.escape(char) + _any_of(rest) for char, rest in node.items() if char != END]
    branches = f"(?:{'|'.join(ways)})" if ways else ""
    return "".join(chain) + branches + ("?" if ways and END in node else "")
