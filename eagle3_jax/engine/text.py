"""Incremental detokenization with stop strings.

Text that may still change (half a UTF-8 character) or start a stop string is held back with its
tokens, so that released output is never revised.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from eagle3_jax.sampling.params import SamplingParams

MAX_UNSETTLED = 16
"""Tokens whose text may wait for more bytes; a character has at most 4."""


class Tokenizer(Protocol):
    """Tokenizer methods that the engine needs."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...


class TextStream:
    """Converts tokens to released (tokens, text). Without a tokenizer the text stays empty."""

    def __init__(self, tokenizer: Tokenizer | None, sampling: SamplingParams):
        self._tokenizer = tokenizer
        self._skip_special = sampling.skip_special_tokens
        self._stop = tuple(sampling.stop)
        self._include_stop = sampling.include_stop_str_in_output
        self._tokens: list[int] = []
        self._ends: list[int] = []  # characters of text after each token that is fully decoded
        self._text = ""
        self._window = 0  # first token of the decoding window
        self._window_text = 0  # characters of the window's text that are already in _text
        self._search_from = 0
        self._released = (0, 0)

    def push(self, token: int, *, silent: bool = False, match: bool = True) -> str | None:
        """Add a token; return the stop string that it completes, if any, and cut the text there.

        Of several the first in the text counts, then the first in the list. Tokens are cut too. A
        `silent` token (a stop id) adds no text. With `match=False` stop strings do not count yet.
        """
        if silent:
            self._decode(flush=True)
            self._tokens.append(token)
            self._ends.append(len(self._text))
            return None
        self._tokens.append(token)
        self._decode()
        if not match:
            self._search_from = len(self._text)
            return None
        return self._cut_at_stop()

    def release(self, *, final: bool) -> tuple[tuple[int, ...], str]:
        """Release the settled tokens and text; everything if `final`."""
        if final:
            self._decode(flush=True)
        chars = len(self._text) if final else len(self._text) - self._held_back()
        tokens = len(self._tokens)
        if self._stop and not final:
            tokens = bisect_right(self._ends, chars)
        old_tokens, old_chars = self._released
        self._released = (max(tokens, old_tokens), max(chars, old_chars))
        return tuple(self._tokens[old_tokens:tokens]), self._text[old_chars:chars]

    def _decode(self, flush: bool = False) -> None:
        new = len(self._tokens) - len(self._ends)
        if self._tokenizer is None or new == 0:
            self._ends.extend([0] * new)
            return
        window = self._tokenizer.decode(self._tokens[self._window :], self._skip_special)
        if window.endswith("\ufffd") and not flush:
            if new > MAX_UNSETTLED:
                self._settle(self._tokenizer, window)
            return
        self._text += window[self._window_text :]
        self._ends.extend([len(self._text)] * new)
        # Restart the window at these tokens: they are whole characters, and enough context.
        self._window = len(self._tokens) - new
        kept = self._tokenizer.decode(self._tokens[self._window :], self._skip_special)
        self._window_text = len(kept)

    def _settle(self, tokenizer: Tokenizer, window: str) -> None:
        """Move the window to the start of a character among the last tokens.

        Only the last replacement character can still change. Without this, a run of invalid bytes
        would be decoded repeatedly until it ends.
        """
        last = len(self._tokens) - MAX_UNSETTLED // 2
        for start in range(last, last - 4, -1):
            head = tokenizer.decode(self._tokens[self._window : start], self._skip_special)
            tail = tokenizer.decode(self._tokens[start:], self._skip_special)
            if head + tail == window and len(tail) > 1:
                self._text += head[self._window_text :]
                self._ends.extend([len(self._text)] * (start - len(self._ends)))
                self._window, self._window_text = start, 0
                return

    def _cut_at_stop(self) -> str | None:
        found = [(self._text.find(s, self._search_from), s) for s in self._stop]
        found = [(start, s) for start, s in found if start >= 0]
        if not found:
            longest = max((len(s) for s in self._stop), default=1)
            self._search_from = max(self._search_from, len(self._text) - longest + 1)
            return None
        start, stop = min(found, key=lambda hit: hit[0])
        cut = start + len(stop) if self._include_stop else start
        self._text = self._text[:cut]
        self._tokens = self._tokens[: self._tokens_within(cut)]
        self._ends = self._ends[: len(self._tokens)]
        return stop

    def _tokens_within(self, cut: int) -> int:
        """Count the tokens that end by `cut`, and those that span it if the stop is included.

        Tokens that complete a character together have the same end.
        """
        inside = bisect_right(self._ends, cut)
        spans = self._include_stop and (self._ends[inside - 1] if inside else 0) < cut
        return bisect_right(self._ends, self._ends[inside]) if spans else inside

    def _held_back(self) -> int:
        """Return the length of the longest end of the text that begins a stop string."""
        longest = max((len(s) for s in self._stop), default=1) - 1
        for size in range(min(longest, len(self._text) - self._search_from), 0, -1):
            if any(s.startswith(self._text[-size:]) for s in self._stop):
                return size
        return 0
