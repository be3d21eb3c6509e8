"""MiniMax-M2 through the commands: random weights under the demo's tokenizer."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flax import nnx
from tiny import DRAFT, MINIMAX

from convert import load_tokenizer, save_hf
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.minimax import MiniMaxTarget
from serve.demo import demo_target_dir
from serve.generate import main

TOKENIZER_FILES = ("tiktoken.model", "tokenizer_config.json", "chat_template.jinja")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Directories of a target and its draft, in published form."""
    into, vocab = tmp_path_factory.mktemp("pair"), load_tokenizer(demo_target_dir()).vocab_size
    target = MiniMaxTarget(replace(MINIMAX, vocab_size=vocab), rngs=nnx.Rngs(0))
    # As drawn the head's scores are all but equal.
    head: Any = target.lm_head.kernel
    head.set_value(50 * head.get_value())
    sizes = {"vocab_size": vocab, "draft_vocab_size": vocab}
    draft = Eagle3Draft(
        replace(DRAFT, **sizes),
        rngs=nnx.Rngs(1),
        embed_tokens=target.embed_tokens,
        lm_head=target.lm_head,
    )
    save_hf(target, into / "target", dtype="float32")
    save_hf(draft, into / "draft", dtype="float32", shared_with=target)
    for name in TOKENIZER_FILES:
        shutil.copy(demo_target_dir() / name, into / "target" / name)
    return into / "target", into / "draft"


def test_generate_says_the_same_with_and_without_a_draft(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    target, draft = map(str, pair)
    flags = ["--prompt", "What is 95 + 61?", "--max-tokens", "12", "--seed", "3", "--json"]
    answers = []
    for extra in (["--draft", draft, "--num-speculative-tokens", "3"], []):
        assert main([target, *flags, "--temperature", "0.7", *extra]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    drafted, plain = answers
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["finish_reason"] == plain["finish_reason"] == "length"
    assert len(drafted["accepted"]) >= 1
