"""The makers of the embedded pairs write targets that load, and conversations that train drafts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from convert import load_target, load_tokenizer
from eagle3_tools.make_demo import recipe
from eagle3_tools.make_demo.__main__ import main
from eagle3_tools.make_demo.corpus.conversation import split_of
from eagle3_tools.make_demo.tokenizer import train_ranks, write_tokenizer

BASE = 300


def write_tiny_tokenizer(directory: Path) -> None:
    texts = [recipe.conversation(0, number).messages[0]["content"] for number in range(200)]
    write_tokenizer(directory, train_ranks(texts, BASE), 256)


@pytest.mark.parametrize("architecture", [pytest.param("kimi", marks=pytest.mark.long), "minimax"])
def test_a_target_is_written_with_all_its_files(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"vocab_size": BASE + 256, "hidden_size": 64, "intermediate_size": 64}
    config = replace(recipe.TARGETS[architecture], **sizes, eos_token_ids=(BASE + 2,))
    monkeypatch.setitem(recipe.TARGETS, architecture, config)
    monkeypatch.setattr(recipe, "make_tokenizer", write_tiny_tokenizer)
    monkeypatch.setattr(recipe, "ROWS", 2)
    monkeypatch.setattr(recipe, "ROW_LENGTH", 800)
    where = ["--output", str(tmp_path), "--architecture", architecture]
    assert main(["target", *where, "--steps", "2"]) == 0
    assert load_target(tmp_path).config == config
    assert load_tokenizer(tmp_path).eos_token_ids == (BASE + 2,)
    lines = (tmp_path / "training" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_conversations_are_those_of_the_pairs_training_or_held_out(tmp_path: Path) -> None:
    found = {}
    for name, flags in {"train": ["--seed", "3"], "held_out": ["--held-out"]}.items():
        path = tmp_path / name / "corpus.jsonl"
        assert main(["corpus", str(path), "--conversations", "10", *flags]) == 0
        found[name] = [json.loads(line) for line in path.read_text().splitlines()]
    told = [recipe.conversation(3, number) for number in range(10)]
    assert {split_of(key) for one in told for key in one.keys} == {"train"}
    for line, one in zip(found["train"], told, strict=True):
        assert (line["messages"], line.get("tools", [])) == (list(one.messages), list(one.tools))
    assert len(found["held_out"]) == 10
    assert not [x for x in found["held_out"] if x in found["train"]]
