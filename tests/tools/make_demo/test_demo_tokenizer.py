"""The demo's tokenizer has Kimi's form: single digits, special tokens after the ranks, its chat."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import tiktoken
from transformers import AutoTokenizer

from convert import Tokenizer, load_tokenizer
from convert.text.tiktoken_file import SPLIT_PATTERN, read_ranks
from eagle3_tools.make_demo import recipe
from eagle3_tools.make_demo.corpus import CATEGORIES, held_out_prompts
from eagle3_tools.make_demo.tokenizer import special_tokens, train_ranks

KIMI_OFFSETS = {"[BOS]": 0, "<|im_end|>": 2, "<|im_middle|>": 17, "</think>": 23, "[PAD]": 255}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    recipe.make_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return load_tokenizer(directory)


def test_specials_follow_the_ranks_at_kimis_offsets(directory: Path, tokenizer: Tokenizer) -> None:
    base = len(read_ranks(directory / "tiktoken.model"))
    assert (base, tokenizer.vocab_size) == (recipe.BASE_TOKENS, recipe.TARGET.vocab_size)
    ids = special_tokens(base)
    assert sorted(ids.values()) == list(range(base, base + 256))
    assert all(ids[name] == base + offset for name, offset in KIMI_OFFSETS.items())
    assert ids[f"<|reserved_token_{base + 5}|>"] == base + 5
    assert {t.text: t.token_id for t in tokenizer.special_tokens} == ids
    assert ids["<|im_end|>"] in tokenizer.eos_token_ids
    config = json.loads((directory / "tokenizer_config.json").read_text())
    entry = config["added_tokens_decoder"][str(base + 2)]
    assert entry["content"] == "<|im_end|>" and entry["special"]


def test_ids_equal_tiktokens_and_autotokenizers_own(directory: Path, tokenizer: Tokenizer) -> None:
    ranks = read_ranks(directory / "tiktoken.model")
    reference = tiktoken.Encoding(
        "demo", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
    published = AutoTokenizer.from_pretrained(directory)
    for category in CATEGORIES:
        for conversation in held_out_prompts(category, 10):
            text = conversation.messages[0]["content"]
            assert tokenizer.encode(text) == reference.encode(text)
            assert tokenizer.decode(tokenizer.encode(text)) == text
            chat = published.apply_chat_template(conversation.prompt, add_generation_prompt=True)
            assert tokenizer.encode_chat(conversation.prompt) == chat["input_ids"]
    assert len(tokenizer.encode("1234567")) == 7, "no token joins digits"


def test_the_template_gives_the_published_shapes(tokenizer: Tokenizer) -> None:
    call = {"id": "functions.f:0", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "", "reasoning_content": "R", "tool_calls": [call]},
        {"role": "tool", "name": "f", "tool_call_id": "functions.f:0", "content": "T"},
    ]
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert tokenizer.apply_chat_template(messages, tools=tools) == (
        "<|im_system|>tool_declare<|im_middle|>"
        '[{"type":"function","function":{"name":"f"}}]<|im_end|>'
        "<|im_system|>system<|im_middle|>S<|im_end|><|im_user|>user<|im_middle|>U<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think>R</think><|tool_calls_section_begin|>"
        '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|>'
        "<|tool_calls_section_end|><|im_end|>"
        "<|im_system|>f<|im_middle|>## Return of functions.f:0\nT<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think></think>"
    )
    answered = [*messages, {"role": "assistant", "content": "A"}, {"role": "user", "content": "V"}]
    text = tokenizer.apply_chat_template(answered, thinking=True)
    assert "<think>R" not in text, "reasoning before the last plain answer is dropped"
    assert text.endswith(
        "<|im_user|>user<|im_middle|>V<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
    )


def test_merges_are_those_of_a_plain_byte_pair_search() -> None:
    """Each merge is checked against a recount of all pairs."""
    with pytest.raises(ValueError, match="give only"):
        train_ranks(["ab"], 300)
    texts = ["low lower lowest new newer newest wide wider widest"] * 3
    ranks = train_ranks(texts, 266)
    words = [piece for text in texts for piece in text.replace(" ", "| ").split("|")]
    symbols = [[bytes([b]) for b in word.encode()] for word in words]
    for token in ranks[256:]:
        counts: dict[tuple[bytes, bytes], int] = {}
        for word in symbols:
            for pair in pairwise(word):
                counts[pair] = counts.get(pair, 0) + 1
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        assert token == best[0] + best[1]
        for word in symbols:
            i = 0
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [token]
                i += 1
