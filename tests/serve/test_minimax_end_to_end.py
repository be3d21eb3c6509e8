"""MiniMax-M2 through commands and server: random weights under the demo's tokenizer."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import chat_tokenizers
import pytest
from fake_server import Served, served_by
from flax import nnx
from tiny import DRAFT, MINIMAX, tiny_draft

from convert import load_tokenizer, save_hf
from eagle3_jax.engine.programs.executor import Executor
from eagle3_jax.models.grouped import GroupedQueryTarget
from serve.demo import demo_target_dir
from serve.generate.cli import main
from serve.pair.loading import build_engine, load_pair

QUESTION = "What is 95 + 61?"
TOKENIZER_FILES = ("tiktoken.model", "tokenizer_config.json", "chat_template.jinja")


@pytest.fixture(scope="module", autouse=True)
def compile_on_first_run() -> Iterator[None]:
    """Compile a program when it first runs: two of five do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "compile", lambda executor, progress: None)
        yield


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Directories of a target and its draft, in published form."""
    into, vocab = tmp_path_factory.mktemp("pair"), load_tokenizer(demo_target_dir()).vocab_size
    target = GroupedQueryTarget(replace(MINIMAX, vocab_size=vocab), rngs=nnx.Rngs(0))
    # As drawn the head's scores are all but equal.
    head: Any = target.lm_head.kernel
    head.set_value(50 * head.get_value())
    sizes = {"vocab_size": vocab, "draft_vocab_size": vocab}
    draft = tiny_draft(target, config=replace(DRAFT, **sizes))
    save_hf(target, into / "target", dtype="float32")
    save_hf(draft, into / "draft", dtype="float32", shared_with=target)
    for name in TOKENIZER_FILES:
        shutil.copy(demo_target_dir() / name, into / "target" / name)
    return into / "target", into / "draft"


@pytest.fixture(scope="module")
def server(pair: tuple[Path, Path]) -> Iterator[Served]:
    """With MiniMax's marks and template, and the programs that eagle3-generate compiles."""
    tokenizer = chat_tokenizers.minimax()
    loaded = load_pair(*pair, adapt_tokenizer=lambda _: tokenizer)
    sizes = {"max_num_seqs": 1, "batch_buckets": (1,), "enable_structured_outputs": False}
    engine = build_engine(loaded, num_speculative_tokens=3, **sizes)
    with served_by(engine, tokenizer) as running:
        yield running


def test_generate_says_with_a_draft_what_the_server_says_without(
    pair: tuple[Path, Path], server: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    target, draft = map(str, pair)
    flags = ["--draft", draft, "--num-speculative-tokens", "3", "--json", "--raw", "--ignore-eos"]
    flags += ["--prompt", QUESTION, "--max-tokens", "24", "--temperature", "0.7", "--seed", "0"]
    assert main([target, *flags]) == 0
    drafted = json.loads(capsys.readouterr().out)
    body = {"prompt": QUESTION, "max_tokens": 24, "temperature": 0.7, "seed": 0}
    body |= {"return_token_ids": True, "ignore_eos": True, "speculative": {"num_tokens": 0}}
    (plain,) = server.ask("/v1/completions", **body)["choices"]
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["finish_reason"] == plain["finish_reason"] == "length"
    assert sum(drafted["accepted"]) > plain["spec"]["accepted"] == 0


def test_a_chat_over_http_is_read_as_minimaxs_and_the_same_without_drafts(server: Served) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    body = {"messages": messages, "max_tokens": 24, "temperature": 0.7, "seed": 1}
    body |= {"return_token_ids": True, "ignore_eos": True}
    drafted, plain = (
        server.http.post("/v1/chat/completions", json=body | more).json()
        for more in ({}, {"speculative": {"num_tokens": 0}})
    )
    tokenizer = chat_tokenizers.minimax()
    assert drafted["prompt_token_ids"] == tokenizer.encode_chat(messages)
    ours, theirs = drafted["choices"][0], plain["choices"][0]
    assert ours["token_ids"] == theirs["token_ids"] and len(ours["token_ids"]) == 24
    assert ours["spec"]["accepted"] > theirs["spec"]["accepted"] == 0
    # The template opens the reasoning, and this answer does not end it.
    assert ours["message"]["reasoning_content"] == tokenizer.decode(ours["token_ids"])
    assert ours["message"]["content"] is None
