"""The tokenizers of the embedded pairs are reproducible, and other libraries read them alike."""

import hashlib
from pathlib import Path

import pytest
import tiktoken
from transformers import AutoTokenizer

from convert import load_tokenizer
from convert.text.tiktoken_file import SPLIT_PATTERN, read_ranks
from eagle3_tools.make_demo import recipe
from eagle3_tools.make_demo.corpus import CATEGORIES, held_out_prompts
from eagle3_tools.make_demo.pictures import recipe as picture_recipe
from eagle3_tools.make_demo.tokenizer import train_ranks

FILES = ("tiktoken.model", "tokenizer_config.json")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    recipe.make_tokenizer(path)
    return path


def digest(directory: Path) -> str:
    return hashlib.sha256(b"".join((directory / n).read_bytes() for n in FILES)).hexdigest()[:16]


def test_the_files_are_those_that_training_wrote(directory: Path, tmp_path: Path) -> None:
    """Each merge was once checked against a recount of all pairs."""
    picture_recipe.make_tokenizer(tmp_path)
    assert (digest(directory), digest(tmp_path)) == ("4dd28eca6d58165a", "2cdd12b2b9412687")
    with pytest.raises(ValueError, match="give only"):
        train_ranks(["ab"], 300)


def test_ids_equal_tiktokens_and_autotokenizers_own(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
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
