"""The embedded pair that sees: right answers about pictures that training never drew."""

import json
from pathlib import Path

import jax.numpy as jnp
import pytest

from convert import load_target, load_tokenizer, load_vision
from eagle3_tools.bench.cli import main
from eagle3_tools.make_demo.pictures.accuracy import OVERALL, held_out_accuracy
from eagle3_tools.make_demo.pictures.questions import TOPICS, write_questions
from serve.demo import demo_vision_draft_dir, demo_vision_target_dir

PICTURES = 16


@pytest.mark.long
def test_four_in_five_held_out_questions_are_answered() -> None:
    """It asks 320 questions; another test asks 16."""
    directory = demo_vision_target_dir()
    target, vision = (
        load_target(directory, dtype=jnp.float32),
        load_vision(directory, dtype=jnp.float32),
    )
    right = held_out_accuracy(target, vision, load_tokenizer(directory), 320)
    assert right.keys() == {*TOPICS, OVERALL}
    assert right[OVERALL] >= 0.8


def test_the_pair_has_at_most_10_megabytes() -> None:
    directories = demo_vision_target_dir(), demo_vision_draft_dir()
    assert sum(f.stat().st_size for d in directories for f in d.iterdir()) <= 10e6


def test_accept_measures_it_on_generated_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_questions(tmp_path, PICTURES, seed=2)
    found = tmp_path / "accept.json"
    flags = ["--data", f"{tmp_path}", "--max-tokens", "40", "--json", f"{found}"]
    flags += ["--max-num-seqs", "1", "--num-speculative-tokens", "3"]
    assert main(["accept", "--demo-vision", *flags]) == 0
    record = json.loads(found.read_text())
    assert [row["category"] for row in record["rows"]] == [*TOPICS, OVERALL]
    everything = record["rows"][-1]
    assert everything["prompts"] == PICTURES and everything["right"] >= 0.7
    assert 1 < everything["accept_length"] <= 4 and len(everything["per_position"]) == 3
    terms = record["terms"]
    told = terms["pictures"], terms["draft_embedding"], terms["max_tokens"]
    assert told == (PICTURES, "pad", 40)
    assert terms["most_patches"] == 36 and len(terms["chat_template"]) == 64
    assert "2.597" in terms["reference"] and "2.597" in capsys.readouterr().out
