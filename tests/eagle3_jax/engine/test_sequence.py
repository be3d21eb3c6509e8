"""Finish rules of one sequence, without an engine."""

import pytest
from toy_tokenizer import PIECES, ToyTokenizer

from eagle3_jax.engine import Request, Round
from eagle3_jax.engine.programs.packing import pack_options
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.sampling.params import SamplingParams

ID = {piece: i for i, piece in enumerate(PIECES)}


@pytest.mark.parametrize(("include", "text"), [(True, "aabab"), (False, "aa")])
def test_a_stop_id_beats_a_stop_string_that_it_completes(include: bool, text: str) -> None:
    """Its text, where it counts at all, stays whole."""
    sampling = SamplingParams(
        stop="ab",
        stop_token_ids=[ID[b"bab"]],
        include_stop_str_in_output=include,
        max_tokens=9,
        seed=0,
    )
    sequence = Sequence.of(Request("a", [0], sampling), (), 32, ToyTokenizer())
    for token in (ID[b"aa"], ID[b"bab"]):
        sequence.append(token)
    output = sequence.output()
    assert output is not None
    assert (output.token_ids, output.text) == ((ID[b"aa"], ID[b"bab"]), text)
    assert (output.finish_reason, output.stop_reason) == ("stop", ID[b"bab"])


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


@pytest.mark.parametrize("length", [0, 8])
def test_a_prompt_leaves_room_for_a_token(length: int) -> None:
    with pytest.raises(ValueError, match=r"it must have 1\.\.7"):
        Sequence.of(Request("a", [1] * length, SamplingParams()), (), 8, None)
