"""Log-probabilities are those of the whole model in float64, with and without speculation."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from driving import Answer, drive, sizes
from sweeps import sweep
from tiny import VOCAB
from toy_tokenizer import ToyTokenizer

import eagle3_jax
from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.logprob_rows import LogprobRows, LogprobsOfToken
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.logprobs import token_logprobs
from eagle3_jax.sampling.params import SamplingParams

TOKEN_LOGPROBS = jax.jit(token_logprobs)
TOLERANCE = 2e-4
PENALTY = 1.5
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "logprobs": 3},
    "all of them": {"logprobs": 20, "prompt_logprobs": 20},
    "chosen alone": {"temperature": 0.7, "logprobs": 0, "prompt_logprobs": 0},
    "raw under options": {"temperature": 0.5, "top_k": 5, "logprobs": 4},
    "processed": {
        "temperature": 0.6,
        "top_k": 12,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": PENALTY,
        "logprobs": 20,
        "prompt_logprobs": 2,
        "logprobs_mode": "processed_logprobs",
    },
    "stop string": {"temperature": 1.0, "stop": ["ab"], "logprobs": 2},
    "stop id": {"temperature": 1.0, "stop_token_ids": range(40, 60), "logprobs": 2},
    "no drafts": {"num_speculative_tokens": 0, "logprobs": 1},
    "prompt alone": {"prompt_logprobs": 5},
    "none": {"temperature": 0.9},
    "raw under a bias": {
        "temperature": 0.8,
        "logit_bias": {7: 5.0, 40: 4.0, 3: -100.0},
        "repetition_penalty": PENALTY,
        "frequency_penalty": 0.5,
        "logprobs": 20,
    },
}


def asking() -> list[Request]:
    """One request of each kind; prompts of 3 to 21 tokens, that is of 1 to 3 chunks."""
    requests: list[Request] = []
    for index, (name, options) in enumerate(OPTIONS.items()):
        prompt = [(11 * index + 5 * j * j) % VOCAB for j in range(3 + (6 * index) % 19)]
        sampling = SamplingParams(seed=index, max_tokens=30 + index % 5, **options)
        requests.append(Request(name, prompt, sampling))
    return requests


def engine_of(target: Target, draft: Eagle3Draft | None, k: int, **changes: Any) -> Engine:
    config = sizes(k, **changes)
    return Engine(target, draft, config, tokenizer=ToyTokenizer(), eos_token_ids=())


@pytest.fixture(scope="module")
def alone(target: Target) -> dict[str, Answer]:
    """Plain decoding, one at a time, never preempted."""
    engine = engine_of(target, None, 0, max_num_seqs=1, num_pages=None, batch_buckets=(1,))
    answers: dict[str, Answer] = {}
    for request in asking():
        sampling = replace(request.sampling, num_speculative_tokens=None)
        answers |= drive(engine, [replace(request, sampling=sampling)])
    return answers


def entries(answer: Answer) -> list[LogprobsOfToken]:
    return [entry for output in answer.outputs for entry in output.logprobs]


def processed(logits: np.ndarray, seen: Iterable[int], options: SamplingParams) -> np.ndarray:
    """float64 log-probabilities after repetition penalty, temperature, min-p, top-k, top-p."""
    scores = logits.astype(np.float64)
    for token in set(seen):
        scores[token] *= PENALTY if scores[token] < 0 else 1 / PENALTY
    probs = np.exp((scores - scores.max()) / options.temperature)
    probs[probs < options.min_p] = 0
    probs[probs < np.sort(probs)[-options.top_k]] = 0
    probs /= probs.sum()
    ordered = np.sort(probs)[::-1]
    probs[probs < ordered[np.searchsorted(np.cumsum(ordered), options.top_p)]] = 0
    with np.errstate(divide="ignore"):
        return np.log(probs / probs.sum())


def raw(logits: np.ndarray) -> np.ndarray:
    scores = logits.astype(np.float64)
    shifted = scores - scores.max()
    return shifted - np.log(np.exp(shifted).sum())


def check(entry: LogprobsOfToken, distribution: np.ndarray, token: int, count: int) -> None:
    """The chosen token comes first, the best follow in order; near ties may change places."""
    assert next(iter(entry)) == token and count <= len(entry) <= count + 1
    order = np.sort(distribution)[::-1]
    for found, (logprob, rank) in entry.items():
        np.testing.assert_allclose(logprob, distribution[found], atol=TOLERANCE)
        np.testing.assert_allclose(logprob, order[rank - 1], atol=TOLERANCE)
    assert sorted(rank for _, rank in entry.values()) == sorted(
        {*range(1, count + 1), entry[token].rank}
    )


def test_plain_logprobs_are_those_of_the_whole_model_in_float64(
    target: Target, alone: dict[str, Answer]
) -> None:
    for request in asking():
        sampling, prompt = request.sampling, request.prompt_ids
        answer = alone[request.request_id]
        scored, tokens = entries(answer), answer.token_ids
        assert len(scored) == (len(tokens) if sampling.logprobs is not None else 0)
        padded = jnp.asarray([[*prompt, *tokens, *[0] * (64 - len(prompt) - len(tokens))]])
        logits = np.asarray(eagle3_jax.forward(target, padded).logits[0])
        for index, entry in enumerate(scored):
            row, seen = logits[len(prompt) + index - 1], prompt + tokens[:index]
            is_processed = sampling.logprobs_mode == "processed_logprobs"
            distribution = processed(row, seen, sampling) if is_processed else raw(row)
            check(entry, distribution, tokens[index], sampling.logprobs or 0)
        known = answer.outputs[-1].prompt_logprobs
        assert len(known) == (0 if sampling.prompt_logprobs is None else len(prompt))
        assert not known or known[0] is None
        for index, entry in enumerate(known[1:], start=1):
            assert entry is not None
            check(entry, raw(logits[index - 1]), prompt[index], sampling.prompt_logprobs or 0)


def assert_close(found: LogprobsOfToken | None, expected: LogprobsOfToken | None) -> None:
    """Equal but for rounding, by which near ties may change places: see `moved`."""
    assert (found is None) == (expected is None)
    if found and expected:
        assert next(iter(found)) == next(iter(expected))
        values, wanted = (
            sorted(one.logprob for one in entry.values()) for entry in (found, expected)
        )
        np.testing.assert_allclose(values, wanted, atol=TOLERANCE)


def moved(found: Answer, expected: Answer) -> int:
    """At how many tokens of prompt and answer the ranks differ."""

    def ranks(answer: Answer) -> list[list[int]]:
        known = [*entries(answer), *(entry or {} for entry in answer.outputs[-1].prompt_logprobs)]
        return [[one.rank for one in entry.values()] for entry in known]

    return sum(one != other for one, other in zip(ranks(found), ranks(expected), strict=True))


MODES: dict[str, dict[str, Any]] = {
    "chain": {},
    "tree": {"eagle_topk": 3, "num_draft_tokens": 9},
}


@pytest.mark.parametrize("mode", sweep(MODES, ["chain"]))
def test_drafts_batches_chunks_and_preemption_change_no_logprob(
    target: Target, draft: Eagle3Draft, alone: dict[str, Answer], mode: str
) -> None:
    engine = engine_of(target, draft, 3, **MODES[mode])
    answers = drive(engine, asking())
    assert engine.stats().num_preemptions > 0
    assert engine.stats().num_accepted_tokens > 20
    assert sum(moved(answer, alone[name]) for name, answer in answers.items()) <= 2, "near ties"
    for name, answer in answers.items():
        assert answer.token_ids == alone[name].token_ids
        for found, expected in zip(entries(answer), entries(alone[name]), strict=True):
            assert_close(found, expected)
        pairs = [a.outputs[-1].prompt_logprobs for a in (answer, alone[name])]
        for found, expected in zip(*pairs, strict=True):
            assert_close(found, expected)
        for output in answer.outputs:
            asked = OPTIONS[name].get("logprobs") is not None
            assert len(output.logprobs) == (len(output.token_ids) if asked else 0)


@pytest.mark.optimised
def test_in_exact_mode_logprobs_are_equal_bit_for_bit(target: Target, draft: Eagle3Draft) -> None:
    """Also across preemption, after which the answer is generated, but not reported, again."""

    def reported(engine: Engine, requests: list[Request]) -> dict[str, Any]:
        answers = drive(engine, requests)
        return {n: (entries(a), a.outputs[-1].prompt_logprobs) for n, a in answers.items()}

    speculative = engine_of(target, draft, 3, exact=True)
    together = reported(speculative, asking())
    assert speculative.stats().num_preemptions > 0
    plain, alone = engine_of(target, None, 3, exact=True), {}
    for request in asking():
        alone |= reported(plain, [request])
    assert together == alone


def test_a_prompt_known_to_the_cache_is_scored_whole(target: Target, draft: Eagle3Draft) -> None:
    engine = engine_of(target, draft, 3)
    prompt = [(3 * j) % VOCAB for j in range(21)]
    scored = Request("x", prompt, SamplingParams(max_tokens=4, seed=0, prompt_logprobs=1))
    first = drive(engine, [scored])["x"]
    plain = replace(scored, sampling=SamplingParams(max_tokens=4, seed=0))
    assert drive(engine, [plain])["x"].outputs[-1].cached_tokens > 0
    again = drive(engine, [scored])["x"]
    assert again.outputs[-1].cached_tokens == 0
    assert again.outputs[-1].prompt_logprobs == first.outputs[-1].prompt_logprobs


def test_a_stop_string_trims_logprobs_with_tokens(alone: dict[str, Answer]) -> None:
    answer = alone["stop string"]
    assert answer.finish == ("stop", "ab")
    assert [next(iter(entry)) for entry in entries(answer)] == answer.token_ids


@pytest.mark.parametrize("chosen, rank", [(0, 5), (1, 1), (2, 5), (3, 2), (4, 5), (5, 6)])
def test_of_equals_a_token_has_the_last_place_as_in_vllm(chosen: int, rank: int) -> None:
    """A rank counts the tokens that are at least as probable; a requested best token has its place
    in the list as rank."""
    logits = jnp.asarray([[0.5, 3.0, 0.5, 2.0, 0.5, -1.0]])
    found = TOKEN_LOGPROBS(logits, jnp.asarray([chosen]))
    assert found.rank.tolist() == [rank]
    assert found.best_ids.tolist() == [[1, 3, 0, 2, 4, 5]]
    rows = LogprobRows.of_row(jax.tree.map(lambda x: np.asarray(x)[None], found), 0)
    for count in range(7):
        entry = rows.at(0, chosen, count)
        place = found.best_ids[0].tolist().index(chosen) + 1
        assert entry[chosen].rank == (place if place <= count else rank)
        assert len({one.rank for one in entry.values()}) == len(entry)
