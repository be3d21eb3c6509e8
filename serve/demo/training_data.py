"""Conversations as training batches: tokenised, marked where the assistant speaks, packed."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from convert import Tokenizer
from eagle3_jax.training.packing import PackedBatch, Sample, assistant_mask, pack
from serve.demo.corpus.conversation import Message

SampleMaker = Callable[[Sequence[Message], Sequence[Message]], Sample]


def sample_maker(tokenizer: Tokenizer) -> SampleMaker:
    """A function from (messages, tools) to token ids and the assistant's part of them.

    Raises ValueError when the tokenizer lacks Kimi's chat tokens.
    """
    ids = {token.text: token.token_id for token in tokenizer.special_tokens}
    names = ("<|im_assistant|>", "<|im_middle|>", "<|im_end|>")
    if missing := [name for name in names if name not in ids]:
        raise ValueError(
            "training tells the assistant's part of a conversation by Kimi's chat tokens, so the "
            f"target's tokenizer must have them; this one lacks {', '.join(missing)}"
        )
    start, middle, end = (ids[name] for name in names)
    marks = tuple(ids[name] for name in ("<think>", "</think>") if name in ids)

    def sample(messages: Sequence[Message], tools: Sequence[Message]) -> Sample:
        token_ids = tokenizer.encode_chat(
            list(messages), tools=list(tools) or None, add_generation_prompt=False
        )
        return Sample(token_ids, assistant_mask(token_ids, start, middle, end, marks))

    return sample


def read_samples(path: Path, tokenizer: Tokenizer, longest: int) -> list[Sample]:
    """Reads a JSONL file of {"messages": [...], "tools": [...]} lines; longer ones are left out.

    Raises ValueError naming the line that is no conversation, and when none is left.
    """
    sample, samples = sample_maker(tokenizer), []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            samples.append(sample(record["messages"], record.get("tools") or ()))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number}: expected an object with `messages`, got: {error}"
            ) from error
    short = [s for s in samples if len(s.token_ids) <= longest]
    if not short:
        raise ValueError(f"{path} holds no conversation of at most {longest} tokens")
    return short


def sample_batches(
    samples: Sequence[Sample], rows: int, length: int, seed: int
) -> Callable[[int], PackedBatch]:
    """The batch of each step, in an order that depends on seed and step alone."""

    def batch_at(step: int) -> PackedBatch:
        order = list(samples)
        random.Random(f"{seed}/{step}").shuffle(order)
        return pack(iter(order), rows, length)

    return batch_at
