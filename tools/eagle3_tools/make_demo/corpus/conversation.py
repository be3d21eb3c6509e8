"""The unit of the corpus: one chat conversation and the problems in it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]

SPLITS = ("train", "held_out")
HELD_OUT_SHARE = 8  # one problem in this many is held out


@dataclass(frozen=True)
class Conversation:
    """OpenAI-style messages that end with the assistant's answer; `keys` names each problem."""

    keys: tuple[str, ...]
    messages: tuple[Message, ...]
    tools: tuple[Message, ...] = ()

    @property
    def prompt(self) -> list[Message]:
        """The messages before the final answer."""
        return list(self.messages[:-1])

    @property
    def answer(self) -> Message:
        """The final assistant message."""
        return self.messages[-1]


def user(content: str | list[Message]) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def exchange(key: str, question: str, answer: str) -> Conversation:
    """Return a conversation of one question and answer."""
    return Conversation((key,), (user(question), assistant(answer)))


def split_of(key: str) -> str:
    """Return a problem's split by a hash of its key, the same on every machine."""
    digest = hashlib.sha256(key.encode()).digest()
    return "held_out" if digest[0] % HELD_OUT_SHARE == 0 else "train"


def belongs(conversation: Conversation, split: str) -> bool:
    """Return whether every problem of the conversation is in `split`."""
    return all(split_of(key) == split for key in conversation.keys)


def listed(items: Sequence[object]) -> str:
    """Join items as comma-separated text."""
    return ", ".join(str(item) for item in items)
