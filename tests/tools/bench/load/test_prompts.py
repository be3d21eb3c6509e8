"""Random prompts: the three meanings of the ratio, and InferenceX's own requests."""

import hashlib
import json
from pathlib import Path

import pytest

from convert.text.tokenizer import Tokenizer, load_tokenizer
from eagle3_tools.bench.load.lengths import (
    SAMPLINGS,
    Sampling,
    Workload,
    draw_lengths,
    length_range,
    source,
)
from eagle3_tools.bench.load.prompts import make_prompts
from serve.demo import demo_target_dir

INFERENCEX = {
    False: ([(91, 32), (80, 32), (79, 29), (95, 26)], "1776a99b677147d3"),
    True: ([(93, 29), (82, 26), (81, 31), (85, 32)], "bd5a5153fbdd4c19"),
}
"""(prompt, answer) lengths and a hash of the prompts that sample_random_requests of InferenceX's
benchmark_serving.py (843c6254) gives for the embedded tokenizer: ISL 96, OSL 32, 4 prompts, ratio
0.8, seed 7, one worker; without and with the chat template."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(demo_target_dir())


def test_the_published_example_of_what_0_8_means() -> None:
    found = {sampling: length_range(sampling, 1024, 0.8) for sampling in SAMPLINGS}
    assert found == {"inferencex": (819, 1024), "vllm": (204, 1844), "sglang": (819, 1024)}


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_length_of_the_range_is_drawn_and_no_other(sampling: Sampling) -> None:
    low, high = length_range(sampling, 10, 0.5)
    drawn = draw_lengths(sampling, 10, 0.5, 2000, source(sampling, 0))
    assert set(drawn) == set(range(low, high + 1))


@pytest.mark.parametrize(
    ("sampling", "length", "ratio"),
    [("vllm", 10, 1.0), ("inferencex", 10, 1.1), ("sglang", 10, -0.1), ("inferencex", 10, 0.0)],
)
def test_ratios_that_mean_nothing_are_refused(
    sampling: Sampling, length: int, ratio: float
) -> None:
    with pytest.raises(ValueError, match="range-ratio"):
        length_range(sampling, length, ratio)


def test_sglang_draws_at_least_one_token_where_inferencex_may_draw_none() -> None:
    assert length_range("sglang", 10, 0.0) == (1, 10)


@pytest.mark.parametrize("templated", [False, True])
def test_prompts_are_those_of_inferencex_s_client(tokenizer: Tokenizer, templated: bool) -> None:
    prompts = make_prompts(Workload(96, 32, chat_template=templated), tokenizer, 4, seed=7)
    digest = hashlib.sha256("".join(prompt.text for prompt in prompts).encode()).hexdigest()[:16]
    assert ([(p.num_tokens, p.max_tokens) for p in prompts], digest) == INFERENCEX[templated]


def test_the_template_counts_as_part_of_the_prompt(tokenizer: Tokenizer) -> None:
    workload = Workload(40, 8, range_ratio=1.0)
    prompts = make_prompts(workload, tokenizer, 8, seed=0)
    assert all(prompt.text.startswith("<|im_user|>") for prompt in prompts)
    assert {prompt.num_tokens for prompt in prompts} == {40}
    with pytest.raises(ValueError, match="the chat template alone has"):
        make_prompts(Workload(4, 8, range_ratio=1.0), tokenizer, 1, seed=0)


def test_prompts_differ_by_seed_and_are_the_same_for_one(tokenizer: Tokenizer) -> None:
    first, again, other = (make_prompts(Workload(40, 8), tokenizer, 2, s) for s in (1, 1, 2))
    assert first == again != other


def test_sglang_repeats_the_first_words_of_conversations(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    turns = [{"from": "human", "value": "sort these"}, {"from": "gpt", "value": "yes"}]
    file = tmp_path / "sharegpt.json"
    file.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    workload = Workload(12, 4, "sglang", 1.0, chat_template=False, sharegpt=f"{file}")
    (prompt,) = make_prompts(workload, tokenizer, 1, seed=0)
    assert prompt.text.startswith("sort thesesort these")
    ids = tokenizer.encode("sort these") * 12
    assert prompt.text == tokenizer.decode(ids[:12])
    with pytest.raises(ValueError, match="1 conversations, 2 are needed"):
        make_prompts(workload, tokenizer, 2, seed=0)
