"""Conversations as samples: what the target reads when it is served, and what of it it says.

An answer is what follows the prompt that the chat template makes of the messages before it, as far
as an id that ends answers. Nothing is known of a model's marks but what template and tokenizer say.
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
from serve.demo.corpus.conversation import Message
from serve.images.reader import ImageReader, NoImages
from serve.images.sources import ImageSource
from serve.openai.content import read_content, sources_in
from serve.openai.prompts.history import template_messages

THINKING = ("auto", "on", "off")
TEXT_ALONE = NoImages()


@dataclass(frozen=True)
class SampleMaker:
    """Makes samples of conversations.

    end_ids: what ends an answer. thinking: `on` asks for it before every answer, `off` leaves
    reasoning out of prompts and answers, `auto` asks where an answer has some. images: reads those
    of conversations, as the server does.
    """

    tokenizer: Tokenizer
    end_ids: tuple[int, ...]
    thinking: str = "auto"
    images: ImageReader | NoImages = TEXT_ALONE

    def __post_init__(self) -> None:
        if self.tokenizer.template is None:
            raise ValueError("the target has no chat template, so conversations are no prompts")
        if self.thinking != "auto":
            self._variables(self.thinking == "on")

    def __call__(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> list[Sample]:
        """One sample, or several where the template shows an answer otherwise once it is history;
        ValueError for what is no conversation with an answer."""
        calls = choose_reading(self.tokenizer).told
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
        """As many placeholders as each image has tokens, in place of one."""
        ids = np.asarray(sample.token_ids)
        here = ids == self.images.placeholder
        if not sources and not here.any():
            return sample
        found = asyncio.run(self.images.read(sources))
        items = tuple(found[source] for source in sources)
        if here.sum() != len(items):
            raise ValueError(
                f"the chat template has {here.sum()} places for {len(items)} images: it is not "
                "made for images, or leaves messages out"
            )
        times = np.ones(len(ids), int)
        times[here] = [item.num_tokens for item in items]
        wanted = np.repeat(np.asarray(sample.wanted), times)
        return Sample(np.repeat(ids, times), wanted, images=items)

    def _answer(self, history: list[Message], answer: Message, tools: Any) -> Sample:
        """The chat up to an answer, of which only the answer is wanted."""
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
        if thinks and reasoning and whole == without:  # the template takes it for history
            said = [*self.tokenizer.encode(reasoning), *said]
        size = next((i + 1 for i, token in enumerate(said) if token in self.end_ids), len(said))
        wanted = [False] * begin + [True] * size + [False] * (len(said) - size)
        return Sample([*whole[:begin], *said], wanted)

    def _variables(self, thinks: bool) -> dict[str, Any]:
        """What the template is told; ValueError where all answers are to be as it can't have it."""
        switch = switch_of(self.tokenizer.template_text)
        if switch.name is None and self.thinking == "auto":
            return {}
        can_think = id_of(THINK, self.tokenizer) is not None
        return switch.variables(thinks, None, can_think=can_think)


def read_contents(messages: Sequence[Message]) -> tuple[list[Message], list[list[ImageSource]]]:
    """Messages as templates read them, and the images that each shows; ValueError for parts that
    are neither text nor images."""
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
    """The new answer in the last sample, where that is how it begins."""
    if samples:
        last, size = samples[-1], len(samples[-1].token_ids)
        if list(new.token_ids[:size]) == last.token_ids:
            new = Sample(new.token_ids, [*last.wanted, *new.wanted[size:]])
            samples.pop()
    samples.append(new)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids both begin with."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
