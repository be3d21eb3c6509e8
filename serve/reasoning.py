"""Where the form of an answer begins when the prompt ends inside the model's reasoning."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from eagle3_jax.structured_outputs import StructuredOutputs

MARKS = ("<think>", "</think>")


class Encoder(Protocol):
    """Encodes special strings as their ids if told to."""

    def encode(self, text: str, add_special: bool = False) -> list[int]: ...


def behind_reasoning(
    outputs: StructuredOutputs | None, prompt: Sequence[int], tokenizer: Encoder
) -> StructuredOutputs | None:
    """The same form, beginning behind the end of the reasoning if the prompt opens one."""
    opening, closing = (tokenizer.encode(mark, add_special=True) for mark in MARKS)
    if outputs is None or len(closing) != 1 or opening != list(prompt[-1:]):
        return outputs
    return replace(outputs, begins_after=closing[0])
