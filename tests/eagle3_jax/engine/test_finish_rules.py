"""Requests that are refused, and ends of single sequences; test_random_traffic.py has all rules."""

import pytest
from driving import sizes
from simulated_device import VOCAB, plain_answer, simulated_engine
from toy_tokenizer import PIECES, ToyTokenizer

from eagle3_jax.engine import Request, Round
from eagle3_jax.engine.programs.packing import pack_options
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import ThinkingBudget

PAST_VOCAB = ThinkingBudget(1, (VOCAB,))
ID = {piece: i for i, piece in enumerate(PIECES)}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("x", [1] * 64, SamplingParams()), "64 tokens.*max_model_len=64"),
        (Request("x", [], SamplingParams()), "0 tokens.*it must have 1..63"),
        (
            Request("x", [VOCAB], SamplingParams()),
            f"prompt ids must be 0..{VOCAB - 1}, got {VOCAB}",
        ),
        (Request("x", [-1], SamplingParams()), "got -1"),
        (Request("x", [1], SamplingParams(n=2)), "expand n > 1"),
        (Request("x", [1], SamplingParams(stop_token_ids=range(65))), "at most 64 ids"),
        (Request("x", [1], SamplingParams(logit_bias={VOCAB: 1.0})), "logit_bias: token ids end"),
        (Request("x", [1], SamplingParams(allowed_token_ids=[VOCAB])), "allowed_token_ids: token"),
        (Request("x", [1], SamplingParams(bad_words_ids=[[1, VOCAB]])), "bad_words_ids: token"),
        (Request("x", [1], SamplingParams(thinking_budget=PAST_VOCAB)), "thinking_budget: token"),
        (Request("taken", [1], SamplingParams()), "'taken' is in use"),
        (Request("x", [1], SamplingParams(stop="a")), "tokenizer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_request_that_cannot_run_is_refused_and_the_rest_goes_on(
    request_: Request, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine has no tokenizer."""
    engine = simulated_engine(monkeypatch, sizes(3))
    taken = Request("taken", [6, 3, 8], SamplingParams(seed=1, max_tokens=40))
    engine.add(taken)
    with pytest.raises(ValueError, match=message):
        engine.add(request_)
    tokens: list[int] = []
    while engine.has_work:
        tokens += [token for output in engine.step() for token in output.token_ids]
    assert tokens == plain_answer(taken, engine.config)[0]


def test_no_news_while_everything_is_held_back_and_then_all_of_it() -> None:
    sampling = SamplingParams(stop="aab", max_tokens=9, seed=0)
    sequence = Sequence.of(Request("a", [0], sampling), (), 32, ToyTokenizer())
    sequence.append(ID[b"aa"])
    sequence.rounds.append(Round(3, 3, 3, 0, 1))
    assert sequence.output() is None
    sequence.append(ID[b"c"])
    sequence.rounds.append(Round(3, 3, 3, 2, 3))
    output = sequence.output()
    assert output is not None
    assert (output.text, output.accepted) == ("aac", (0, 2))


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 5 + (9 << 32), 2**64 - 1, -1, -(2**63)])
def test_all_64_bits_of_a_seed_reach_the_device(seed: int) -> None:
    sequence = Sequence.of(Request("a", [0], SamplingParams(seed=seed)), (), 32, None)
    low, high = pack_options(sequence).seed[0].tolist()
    assert low + (high << 32) == seed % 2**64


def test_a_prompt_and_max_tokens_that_fill_the_context_are_served_whole() -> None:
    """The last token that fits is one of max_tokens; a prompt may leave room for one."""
    for length, most in ((20, 12), (31, 1)):
        request = Request("a", [0] * length, SamplingParams(max_tokens=most, seed=0))
        sequence = Sequence.of(request, (), 32, None)
        for token in range(most):
            assert sequence.finish_reason is None
            sequence.append(token)
        assert (len(sequence.output_ids), sequence.finish_reason) == (most, "length")
