"""Detects that a prompt ends inside the model's reasoning, which the answer then continues."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from serve.chat_format.marked_text import Mark, TokenBytes
from serve.chat_format.reader import END_OF_THINK, THINK

REASONING = ("reasoning_content", "reasoning")
"""Fields of a message with its reasoning. Templates read one or the other."""


class SpecialTokens(TokenBytes, Protocol):
    """Encodes special tokens in a text if asked to, and maps ids to bytes."""

    def encode(
        self, text: str, add_special: bool = False, most: int | None = None
    ) -> list[int]: ...


def id_of(mark: Mark, tokenizer: SpecialTokens) -> int | None:
    """Return the token id of a mark, or None if it is not a single token."""
    ids = tokenizer.encode(mark.text, add_special=True)
    return ids[0] if len(ids) == 1 else None


def end_of_open_reasoning(
    prompt: Sequence[int], tokenizer: SpecialTokens, *, always: bool = False
) -> int | None:
    """Return the id that ends the reasoning in which the prompt ends; None if it does not.

    A prompt that opens the reasoning ends with its mark, or with blanks after it. `always`: the
    model reasons first unless the prompt says that the reasoning has ended.
    """
    begin, end = id_of(THINK, tokenizer), id_of(END_OF_THINK, tokenizer)
    if end is None:
        return None
    shown = (i for i in reversed(prompt) if not tokenizer.token_bytes(i).isspace())
    last = next(shown, None)
    return end if last == begin or (always and last != end) else None


def after_reasoning(
    form: StructuredOutputs | None, end_of_reasoning: int | None
) -> StructuredOutputs | None:
    """Make the constraint start after open reasoning. A triggered grammar is unchanged."""
    if form is None or form.between is not None or end_of_reasoning is None:
        return form
    return replace(form, begins_after=end_of_reasoning)
