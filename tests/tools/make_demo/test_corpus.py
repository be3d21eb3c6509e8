"""The corpus of the embedded pair is reproducible, split without overlap, and can be marked."""

import hashlib
import json
from itertools import islice, pairwise
from typing import Any

import pytest

from eagle3_tools.make_demo.corpus import (
    CATEGORIES,
    conversations,
    correct,
    held_out_prompts,
    mixture,
)

each_category = pytest.mark.parametrize("category", CATEGORIES)


def test_the_mixture_is_the_one_the_demo_was_trained_on() -> None:
    """Its answers were once checked by other means: sums recomputed, functions run, calls held to
    their schemas. None of them has changed since."""
    told = [[c.messages, c.tools] for c in islice(mixture("train", 0), 1500)]
    assert hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16] == "eab05ed0e159186b"
    first, again, other = (list(islice(mixture("train", seed), 50)) for seed in (3, 3, 4))
    assert first == again != other


@each_category
def test_no_held_out_question_is_ever_trained_on(category: str) -> None:
    train = list(islice(conversations(category, "train", 0), 5000))
    held = {key for c in islice(conversations(category, "held_out", 0), 1000) for key in c.keys}
    trained = {key for c in train for key in c.keys}
    assert held and trained and not held & trained
    questions = {json.dumps([c.prompt, c.tools]) for c in held_out_prompts(category, 100)}
    seen = {json.dumps([c.prompt, c.tools]) for c in train}
    assert len(questions) == 100 and not questions & seen


@each_category
def test_the_checker_takes_the_answer_and_refuses_another(category: str) -> None:
    for c, other in pairwise(held_out_prompts(category, 40)):
        text = said(c.answer)
        assert correct(category, c, text)
        if text != said(other.answer):
            assert not correct(category, c, text[:-1] + "?")


def said(message: dict[str, Any]) -> str:
    """Return the model's text for this message, special tokens as text."""
    calls = [
        f"<|tool_call_begin|>{call['id']}<|tool_call_argument_begin|>"
        + call["function"]["arguments"]
        + "<|tool_call_end|>"
        for call in message.get("tool_calls", ())
    ]
    section = ["<|tool_calls_section_begin|>", *calls, "<|tool_calls_section_end|>"]
    return message["content"] + ("".join(section) if calls else "")


def test_an_unknown_category_or_split_is_refused() -> None:
    with pytest.raises(ValueError, match="category must be one of"):
        next(conversations("poetry", "train", 0))
    with pytest.raises(ValueError, match="split must be one of"):
        next(conversations("facts", "test", 0))
