"""The embedded corpus's held-out prompts as token ids."""

from dataclasses import dataclass

from convert.text.tokenizer import Tokenizer
from serve.demo.corpus import CATEGORIES, Conversation, held_out_prompts


@dataclass(frozen=True)
class HeldOutPrompt:
    """One held-out conversation, and its messages before the answer as the target reads them."""

    category: str
    conversation: Conversation
    token_ids: list[int]


def held_out(tokenizer: Tokenizer, per_category: int) -> list[HeldOutPrompt]:
    """The first prompts of every category that pose different problems, category by category."""
    return [
        HeldOutPrompt(name, c, tokenizer.encode_chat(c.prompt, tools=list(c.tools) or None))
        for name in CATEGORIES
        for c in held_out_prompts(name, per_category)
    ]


def user_prompts(per_category: int) -> list[str]:
    """What the first user of each held-out conversation says."""
    conversations = (c for name in CATEGORIES for c in held_out_prompts(name, per_category))
    return [
        next(m["content"] for m in conversation.prompt if m["role"] == "user")
        for conversation in conversations
    ]
