"""Messages that a chat template would leave out: of roles that it does not know, and what the
system says behind the first message. Nothing of a conversation may vanish."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any, Protocol

KNOWN = ("user", "assistant", "tool")
"""Roles that every template shows, or refuses by itself."""


class EncodesChats(Protocol):
    """Makes a prompt of messages (`convert.text.tokenizer.Tokenizer`)."""

    def encode_chat(
        self, messages: Sequence[Any], most: int | None = None, /, **kwargs: Any
    ) -> list[int]: ...


class ShownRoles:
    """What one tokenizer's template shows, found by asking it for prompts."""

    def __init__(self, tokenizer: EncodesChats) -> None:
        self._tokenizer = tokenizer
        self.shows = lru_cache(maxsize=32)(self._shows)
        """Whether a message of a role is in the prompt when it stands within a conversation."""

    def told(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages, those of the system at the beginning as one where the template reads one
        alone. Raises ValueError for a message that would not be in the prompt."""
        first = list(takewhile(lambda m: m["role"] == "system", messages))
        rest = messages[len(first) :]
        if len(first) > 1 and not self.shows("system"):
            texts = [m["content"] for m in first if m.get("content")]
            first = [{**first[0], "content": "\n\n".join(texts)}]
        for role in {m["role"] for m in rest}.difference(KNOWN):
            if not self.shows(role):
                behind = " behind the first: say it there" if role == "system" else ""
                message = f"the chat template shows no message of the role {role!r:.100}{behind}"
                raise ValueError(message)
        return [*first, *rest]

    def _shows(self, role: str) -> bool:
        try:
            return self._prompt(role, "yes") != self._prompt(role, "no")
        except ValueError:
            return True  # The template says itself what it does not take.

    def _prompt(self, role: str, content: str) -> list[int]:
        said = [("user", "a"), (role, content), ("user", "b")]
        return self._tokenizer.encode_chat([{"role": r, "content": c} for r, c in said])
