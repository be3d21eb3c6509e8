"""Random prompts: text of consecutive token ids that keeps its length when tokenized again."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from convert.text.tokenizer import Tokenizer
from eagle3_tools.bench.load.lengths import Integers, Workload, draw_lengths, source

RETRIES = 10
"""Decoded random ids may tokenize to another length; they are cut or extended this many times."""


@dataclass(frozen=True)
class Prompt:
    """One request. `num_tokens` counts `text`, with the chat template; `content` is without it."""

    text: str
    content: str
    num_tokens: int
    max_tokens: int


def make_prompts(workload: Workload, tokenizer: Tokenizer, count: int, seed: int) -> list[Prompt]:
    """Make `count` prompts, the same for the same arguments.

    With InferenceX's sampling, lengths and first ids are those of its client with this seed. As
    there, the template's tokens count as part of the prompt.
    """
    integers = source(workload.sampling, seed)
    around = _template_tokens(tokenizer) if workload.chat_template else 0
    if around >= workload.isl:
        raise ValueError(f"the chat template alone has {around} tokens, ISL is {workload.isl}")
    input_lens, output_lens = (
        draw_lengths(workload.sampling, length, workload.range_ratio, count, integers)
        for length in (workload.isl - around, workload.osl)
    )
    if workload.sharegpt:
        contents = _repeated(Path(workload.sharegpt), tokenizer, input_lens, seed)
    else:
        settles = workload.sampling != "sglang"
        contents = _consecutive(tokenizer, input_lens, integers, settles=settles)
    prompts = []
    for content, max_tokens in zip(contents, output_lens, strict=True):
        text = _templated(tokenizer, content) if workload.chat_template else content
        length = len(tokenizer.encode(text, add_special=True))
        prompts.append(Prompt(text, content, length, max_tokens))
    return prompts


def _templated(tokenizer: Tokenizer, content: str) -> str:
    return tokenizer.apply_chat_template([{"role": "user", "content": content}])


def _template_tokens(tokenizer: Tokenizer) -> int:
    return len(tokenizer.encode(_templated(tokenizer, "a"), add_special=True)) - 1


def _consecutive(
    tokenizer: Tokenizer, lengths: Sequence[int], integers: Integers, *, settles: bool
) -> list[str]:
    """Decode consecutive ids from random starts; `settles` makes texts keep their lengths."""
    vocab_size = tokenizer.codec.vocab_size
    offsets = [int(offset) for offset in integers(0, vocab_size, len(lengths))]
    texts = []
    for i, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        ids = [(offset + i + j) % vocab_size for j in range(length)]
        text = tokenizer.decode(ids, skip_special=False)
        texts.append(_settle(tokenizer, text, length, integers) if settles else text)
    return texts


def _settle(tokenizer: Tokenizer, text: str, length: int, integers: Integers) -> str:
    for _ in range(RETRIES):
        ids = tokenizer.encode(text)
        if len(ids) == length:
            break
        missing = max(length - len(ids), 0)
        ids += [int(i) for i in integers(0, tokenizer.codec.vocab_size, missing)]
        text = tokenizer.decode(ids[:length], skip_special=False)
    return text


def _repeated(file: Path, tokenizer: Tokenizer, lengths: Sequence[int], seed: int) -> list[str]:
    """Repeat a conversation's first message until it is long enough, as SGLang's `random` does."""
    conversations = [
        entry.get("conversations") or entry.get("conversation") or []
        for entry in json.loads(file.read_text(encoding="utf-8"))
    ]
    firsts = [turns[0]["value"] for turns in conversations if len(turns) >= 2]
    random.Random(seed).shuffle(firsts)
    texts = []
    for text in firsts:
        ids = tokenizer.encode(text)
        if ids and len(texts) < len(lengths):
            length = lengths[len(texts)]
            repeated = ids * (-(-length // len(ids)))
            texts.append(tokenizer.decode(repeated[:length], skip_special=False))
    if len(texts) < len(lengths):
        raise ValueError(f"{file} has {len(texts)} conversations, {len(lengths)} are needed")
    return texts
