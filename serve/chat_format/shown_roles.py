"""Detects messages that a chat template would drop, as no message may be lost.

Examples: unknown roles, system messages after the first, and reasoning of earlier turns.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Protocol

from serve.chat_format.reasoning import REASONING
from serve.chat_format.thinking_switch import NAMES

KNOWN = ("user", "assistant", "tool")
"""Roles that every template shows, or refuses by itself."""


class EncodesChats(Protocol):
    """Encodes messages as a prompt (`convert.text.tokenizer.Tokenizer`)."""

    def encode_chat(
        self, messages: Sequence[Any], most: int | None = None, /, **kwargs: Any
    ) -> list[int]: ...


class ShownRoles:
    """Tests which messages a tokenizer's template shows, by rendering prompts.

    `variables` are passed to the template with every chat.
    """

    def __init__(
        self, tokenizer: EncodesChats, variables: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self._tokenizer = tokenizer
        self._variables = variables
        self.shows = lru_cache(maxsize=32)(self._shows)
        """Return whether a message with this role within a conversation appears in the prompt."""

    def shown(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return messages, merging initial system ones if needed. ValueError for one not shown."""
        first = list(takewhile(lambda m: m["role"] == "system", messages))
        rest = messages[len(first) :]
        if len(first) > 1 and not self.shows("system"):
            texts = [m["content"] for m in first if m.get("content")]
            first = [{**first[0], "content": "\n\n".join(texts)}]
        for role in {m["role"] for m in rest}.difference(KNOWN):
            if not self.shows(role):
                behind = " behind the first: put its text there" if role == "system" else ""
                message = f"the chat template shows no message of the role {role!r:.100}{behind}"
                raise ValueError(message)
        return [*first, *rest]

    @cached_property
    def keeps_reasoning(self) -> bool:
        """True if the prompt has the reasoning of every earlier turn, with calls or without."""
        return self._depends_on(_answered) and self._depends_on(_answered_with_a_call)

    def _shows(self, role: str) -> bool:
        said = (("user", "a"), (role, ""), ("user", "b"))
        return self._depends_on(
            lambda text: [{"role": r, "content": content or text} for r, content in said]
        )

    def _depends_on(self, conversation: Callable[[str], list[dict[str, Any]]]) -> bool:
        """Return whether a text in a conversation changes its prompt."""
        thinking = {**self._variables, **dict.fromkeys(NAMES, True)}
        try:
            prompts = [
                self._tokenizer.encode_chat(conversation(text), **thinking)
                for text in ("yes", "no")
            ]
        except ValueError:
            return True  # The template raises its own errors.
        return prompts[0] != prompts[1]


def _answered(reasoning: str) -> list[dict[str, Any]]:
    answer = {"role": "assistant", "content": "b", **dict.fromkeys(REASONING, reasoning)}
    return [{"role": "user", "content": "a"}, answer, {"role": "user", "content": "c"}]


def _answered_with_a_call(reasoning: str) -> list[dict[str, Any]]:
    asked, answer, again = _answered(reasoning)
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": {}}}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "d"}
    last = {"role": "assistant", "content": "e"}
    return [asked, {**answer, "tool_calls": [call]}, result, last, again]
