"""Convert conversations to training samples: the ids that the served target reads and writes.

An answer is the text after the chat template's prompt for the messages before it, up to an id that
ends answers. Only template and tokenizer define a model's markup.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from convert.text.tokenizer import Tokenizer
from eagle3_jax.training.packing import Sample
from serve.asgi.errors import ApiError
from serve.chat_format.format import choose_reading
from serve.chat_format.reader import THINK
from serve.chat_format.reasoning import REASONING, id_of
from serve.chat_format.thinking_switch import switch_of
from serve.images.reader import ImageReader, NoImages, place
from serve.images.sources import ImageSource
from serve.openai.content import read_content, sources_in
from serve.openai.history import template_messages
from serve.train.data import Message

THINKING = ("auto", "on", "off")
TEXT_ALONE = NoImages()


@dataclass(frozen=True)
class SampleMaker:
    """A converter of conversations to samples; `end_ids` end an answer.

    `thinking` "on" requests it for every answer, "off" leaves reasoning out of prompts and answers,
    and "auto" requests it for answers that have some. `images` reads images as the server does.
    """

    tokenizer: Tokenizer
    end_ids: tuple[int, ...]
    thinking: str = "auto"
    images: ImageReader | NoImages = TEXT_ALONE

    def __post_init__(self) -> None:
        if self.tokenizer.template is None:
            raise ValueError("the target has no chat template, which conversations need")
        if self.thinking != "auto":
            self._variables(self.thinking == "on")

    def __call__(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> list[Sample]:
        """Return one sample, or more if templates change past answers; ValueError for no answer."""
        calls = choose_reading(self.tokenizer).history
        try:
            read, sources = read_contents(template_messages(messages, calls))
        except ApiError as error:
            raise ValueError(error.message) from error
        samples: list[Sample] = []
        seen = list[int]()
        for index, message in enumerate(read):
            if message["role"] == "assistant":
                _extend(samples, self._answer(read[:index], message, list(tools) or None))
                seen = [*seen[: len(samples) - 1], index]
        if not samples:
            raise ValueError("no message is of the role assistant")
        shown = [list(chain.from_iterable(sources[:index])) for index in seen]
        return [self._with_images(*found) for found in zip(samples, shown, strict=True)]

    def _with_images(self, sample: Sample, sources: Sequence[ImageSource]) -> Sample:
        """Repeat each placeholder as often as its image has tokens."""
        here = np.asarray(sample.token_ids) == self.images.placeholder
        if not sources and not here.any():
            return sample
        found = asyncio.run(self.images.read(sources))
        items = tuple(found[source] for source in sources)
        placed = place(list(sample.token_ids), items, self.images.placeholder)
        times = np.ones(len(here), int)
        times[here] = [item.num_tokens for item in items]
        return Sample(placed.ids, np.repeat(np.asarray(sample.wanted), times), images=items)

    def _answer(self, history: list[Message], answer: Message, tools: Any) -> Sample:
        """Return the chat up to an answer, with only this answer as training target."""
        reasoning = next((answer[name] for name in REASONING if answer.get(name)), "")
        bare = {name: part for name, part in answer.items() if name not in REASONING}
        thinks = self.thinking == "on" or (self.thinking == "auto" and bool(reasoning))
        options = {"tools": tools, **self._variables(thinks)}
        prompt = self.tokenizer.encode_chat(history, **options)
        closed = {**options, "add_generation_prompt": False}
        without = whole = self.tokenizer.encode_chat([*history, bare], **closed)
        if thinks and reasoning:
            whole = self.tokenizer.encode_chat([*history, answer], **closed)
        begin = _common(prompt, whole)
        said = whole[begin:]
        if thinks and reasoning and whole == without:  # the template dropped the reasoning
            said = [*self.tokenizer.encode(reasoning), *said]
        size = next((i + 1 for i, token in enumerate(said) if token in self.end_ids), len(said))
        wanted = [False] * begin + [True] * size + [False] * (len(said) - size)
        return Sample([*whole[:begin], *said], wanted)

    def _variables(self, thinks: bool) -> dict[str, Any]:
        """Return the template's variables; ValueError if it does not support the thinking mode."""
        switch = switch_of(self.tokenizer.template_text)
        if switch.name is None and self.thinking == "auto":
            return {}
        can_think = id_of(THINK, self.tokenizer) is not None
        return switch.variables(thinks, None, can_think=can_think)


def read_contents(messages: Sequence[Message]) -> tuple[list[Message], list[list[ImageSource]]]:
    """Return messages in templates' form, and their images; ValueError for other parts."""
    try:
        contents = [read_content(message.get("content")) for message in messages]
    except ApiError as error:
        raise ValueError(error.message) from error
    told = [
        {**message, "content": [part.for_template() for part in content]}
        if isinstance(content, list)
        else {**message, **({} if content is None else {"content": content})}
        for message, content in zip(messages, contents, strict=True)
    ]
    return told, [sources_in([content]) for content in contents]


def _extend(samples: list[Sample], new: Sample) -> None:
    """Append an answer's sample, or extend the last sample if the new one begins with it."""
    if samples:
        last, size = samples[-1], len(samples[-1].token_ids)
        if list(new.token_ids[:size]) == last.token_ids:
            new = Sample(new.token_ids, [*last.wanted, *new.wanted[size:]])
            samples.pop()
    samples.append(new)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
