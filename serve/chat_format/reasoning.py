"""Whether a prompt ends inside the model's reasoning, which the answer then goes on with."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from serve.chat_format.marked_text import Mark, TokenBytes
from serve.chat_format.reader import END_OF_THINK, THINK

REASONING = ("reasoning_content", "reasoning")
"""Fields of a message that hold its reasoning; templates read one or the other."""


class SpecialTokens(TokenBytes, Protocol):
    """Encodes special strings as their ids if asked to, and spells ids."""

    def encode(
        self, text: str, add_special: bool = False, most: int | None = None
    ) -> list[int]: ...


def id_of(mark: Mark, tokenizer: SpecialTokens) -> int | None:
    """The id of a mark; None where it is no token of its own."""
    ids = tokenizer.encode(mark.text, add_special=True)
    return ids[0] if len(ids) == 1 else None


def end_of_open_reasoning(
    prompt: Sequence[int], tokenizer: SpecialTokens, *, always: bool = False
) -> int | None:
    """The id that ends the reasoning in which the prompt ends; None where it doesn't.

    A prompt that opens the reasoning ends with its mark, or with blanks behind that. always: the
    model reasons first unless the prompt says that the reasoning is over.
    """
    begin, end = id_of(THINK, tokenizer), id_of(END_OF_THINK, tokenizer)
    if end is None:
        return None
    shown = (i for i in reversed(prompt) if not tokenizer.token_bytes(i).isspace())
    last = next(shown, None)
    return end if last == begin or (always and last != end) else None


def behind(
    form: StructuredOutputs | None, end_of_reasoning: int | None
) -> StructuredOutputs | None:
    """The same form, beginning behind the reasoning if the prompt ends inside it; one of pieces
    needs not wait."""
    if form is None or form.between is not None or end_of_reasoning is None:
        return form
    return replace(form, begins_after=end_of_reasoning)
