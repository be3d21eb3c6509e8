"""Held-out prompts of the embedded corpus as token ids."""

from dataclasses import dataclass

from convert.text.tokenizer import Tokenizer
from eagle3_tools.make_demo.corpus import CATEGORIES, Conversation, held_out_prompts


@dataclass(frozen=True)
class HeldOutPrompt:
    """A held-out conversation, and the token ids of its messages before the answer."""

    category: str
    conversation: Conversation
    token_ids: list[int]


def held_out(tokenizer: Tokenizer, per_category: int) -> list[HeldOutPrompt]:
    """Return the first `per_category` prompts of every category that pose different problems."""
    return [
        HeldOutPrompt(name, c, tokenizer.encode_chat(c.prompt, tools=list(c.tools) or None))
        for name in CATEGORIES
        for c in held_out_prompts(name, per_category)
    ]


def user_prompts(per_category: int) -> list[str]:
    """Return the first user message of each held-out conversation."""
    conversations = (c for name in CATEGORIES for c in held_out_prompts(name, per_category))
    return [
        next(m["content"] for m in conversation.prompt if m["role"] == "user")
        for conversation in conversations
    ]
