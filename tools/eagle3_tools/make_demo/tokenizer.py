"""Make the demo's tokenizer: byte-level BPE ranks trained on the corpus, Kimi's special tokens."""

import base64
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import regex

from convert.text.tiktoken_file import NUM_RESERVED, SPLIT_PATTERN
from serve.demo import demo_target_dir

SPECIAL_OFFSETS = {
    "[BOS]": 0,
    "[EOS]": 1,
    "<|im_end|>": 2,
    "<|im_user|>": 3,
    "<|im_assistant|>": 4,
    "<|start_header_id|>": 6,
    "<|end_header_id|>": 7,
    "[EOT]": 9,
    "<|im_system|>": 10,
    "<|tool_calls_section_begin|>": 11,
    "<|tool_calls_section_end|>": 12,
    "<|tool_call_begin|>": 13,
    "<|tool_call_argument_begin|>": 14,
    "<|tool_call_end|>": 15,
    "<|im_middle|>": 17,
    "<|media_begin|>": 18,
    "<|media_content|>": 19,
    "<|media_end|>": 20,
    "<|media_pad|>": 21,
    "<think>": 22,
    "</think>": 23,
    "[UNK]": 254,
    "[PAD]": 255,
}

# Decoded text keeps these: clients parse reasoning and tool calls from it.
VISIBLE = {name for name in SPECIAL_OFFSETS if "think" in name or "tool_call" in name}

Pair = tuple[bytes, bytes]


def train_ranks(texts: Iterable[str], size: int) -> list[bytes]:
    """Train byte-pair tokens in rank order: 256 bytes, then merges of the most frequent pairs.

    Digits never merge, so that numbers are read digit by digit. Ties go to the smaller pair. Raises
    ValueError if the texts have too few pairs for `size` tokens.
    """
    pieces = Counter(piece for text in texts for piece in _pretokenize(text))
    words = [tuple(bytes([b]) for b in piece.encode()) for piece in pieces]
    counts = list(pieces.values())
    frequency: Counter[Pair] = Counter()
    holders: defaultdict[Pair, set[int]] = defaultdict(set)
    for i, word in enumerate(words):
        _count_pairs(frequency, holders, word, counts[i], i)
    ranks = [bytes([b]) for b in range(256)]
    while len(ranks) < size:
        pair = min(frequency, key=lambda p: (-frequency[p], p), default=None)
        if pair is None or frequency[pair] <= 0:
            raise ValueError(f"the texts give only {len(ranks)} tokens, {size} were asked for")
        ranks.append(pair[0] + pair[1])
        for i in holders.pop(pair):
            _count_pairs(frequency, holders, words[i], -counts[i], i)
            words[i] = _merge(words[i], pair)
            _count_pairs(frequency, holders, words[i], counts[i], i)
        del frequency[pair]
    return ranks


def special_tokens(base: int) -> dict[str, int]:
    """Return all 256 special tokens after `base` ordinary ones, with Kimi's names."""
    names = {offset: name for name, offset in SPECIAL_OFFSETS.items()}
    return {
        names.get(offset, f"<|reserved_token_{base + offset}|>"): base + offset
        for offset in range(NUM_RESERVED)
    }


def write_tokenizer(directory: Path, ranks: list[bytes], max_length: int) -> None:
    """Write tiktoken.model, tokenizer_config.json and chat_template.jinja in published form."""
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(ranks))
    (directory / "tiktoken.model").write_text("".join(lines))
    specials = special_tokens(len(ranks))
    added = {
        str(token_id): {
            "content": name,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": name not in VISIBLE,
        }
        for name, token_id in specials.items()
        if name in SPECIAL_OFFSETS
    }
    config = {
        "added_tokens_decoder": added,
        "bos_token": "[BOS]",
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "extra_special_tokens": {},
        "model_max_length": max_length,
        "pad_token": "[PAD]",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "[UNK]",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copy(demo_target_dir() / "chat_template.jinja", directory)


def _pretokenize(text: str) -> list[str]:
    pieces = regex.findall(SPLIT_PATTERN, text, flags=regex.V1)
    return [piece for piece in pieces if not piece[0].isnumeric()]


def _count_pairs(
    frequency: Counter[Pair],
    holders: defaultdict[Pair, set[int]],
    word: tuple[bytes, ...],
    count: int,
    index: int,
) -> None:
    for pair in pairwise(word):
        frequency[pair] += count
        if count > 0:
            holders[pair].add(index)


def _merge(word: tuple[bytes, ...], pair: Pair) -> tuple[bytes, ...]:
    merged, i = [], 0
    while i < len(word):
        if word[i : i + 2] == pair:
            merged.append(pair[0] + pair[1])
            i += 2
        else:
            merged.append(word[i])
            i += 1
    return tuple(merged)
