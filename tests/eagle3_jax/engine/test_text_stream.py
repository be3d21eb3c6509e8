"""Streamed text against an oracle that decodes everything at once, then cuts."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tokenizer import PIECES, ToyTokenizer

from eagle3_jax.engine.text import TextStream
from eagle3_jax.sampling.params import SamplingParams

TOKENIZER = ToyTokenizer()
ID = {piece: i for i, piece in enumerate(PIECES)}


class Streamed(NamedTuple):
    """Output of a stream: tokens and text in pieces, and the stop string that it matched."""

    tokens: list[tuple[int, ...]]
    texts: list[str]
    matched: str | None


def stream(
    ids: list[int],
    stop: list[str],
    include_stop: bool = False,
    min_tokens: int = 0,
    rounds: list[int] | None = None,
) -> Streamed:
    """Pushes tokens in rounds, as the engine does, and takes after each round."""
    text = TextStream(TOKENIZER, SamplingParams(stop=stop, include_stop_str_in_output=include_stop))
    streamed = Streamed([], [], None)
    sizes = iter(rounds or [])
    left, matched = next(sizes, 1), None
    for index, token in enumerate(ids):
        matched = text.push(token, match=index + 1 >= min_tokens)
        left -= 1
        if matched is not None:
            break
        if left == 0:
            tokens, piece = text.release(final=False)
            streamed.tokens.append(tokens)
            streamed.texts.append(piece)
            left = next(sizes, 1)
    tokens, piece = text.release(final=True)
    return Streamed([*streamed.tokens, tokens], [*streamed.texts, piece], matched)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    ("stop", "text", "matched"),
    [
        (["ba", "ab"], "c", "ab"),
        (["ab", "ba"], "c", "ab"),
        (["b", "abab"], "c", "abab"),
        (["ab", "abab"], "c", "ab"),
        (["abab", "ab"], "c", "abab"),
    ],
)
def test_of_stop_strings_that_one_token_completes_the_earliest_in_the_text_wins(
    stop: list[str], text: str, matched: str, include: bool
) -> None:
    """Wherever it stands in the list, which decides between two that begin together."""
    streamed = stream([ID[b"c"], ID[b"a"], ID[b"bab"]], stop, include)
    assert streamed.matched == matched
    assert "".join(streamed.texts) == text + matched * include


@settings(max_examples=100, deadline=None, derandomize=True)
@given(ids=st.lists(st.sampled_from([*range(9, 17)]), min_size=20, max_size=80))
def test_long_runs_of_broken_characters_add_up_to_the_whole_decode(ids: list[int]) -> None:
    streamed = stream(ids, [])
    assert "".join(streamed.texts) == TOKENIZER.decode(ids)
    assert [token for piece in streamed.tokens for token in piece] == ids


def test_a_run_of_bytes_that_are_no_text_costs_as_much_a_token_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded, decode = [0], ToyTokenizer.decode

    def count(self: ToyTokenizer, ids: Sequence[int], skip_special: bool = True) -> str:
        decoded[0] += len(ids)
        return decode(self, ids, skip_special)

    monkeypatch.setattr(ToyTokenizer, "decode", count)
    stream([ID[b"\xa9"]] * 500, [])
    assert decoded[0] < 500 * 40


@pytest.mark.parametrize(
    ("pieces", "stop", "texts"),
    [
        ([b"a", b"\xe4\xb8", b"\xad", b"b"], [], ["a", "", "中", "b", ""]),
        ([b"a", b"\xc3"], [], ["a", "", "\ufffd"]),
        ([b"\xc3", b"\xc3", b"a"], [], ["", "", "\ufffd\ufffda", ""]),
        ([b"c", b"a", b"a", b"ba"], ["aab"], ["c", "", "", ""]),
        ([b"a", b"a", b"c"], ["aab"], ["", "", "aac", ""]),
    ],
    ids=["half", "half at the end", "no character", "held back", "no stop string"],
)
def test_text_comes_when_it_is_settled(
    pieces: list[bytes], stop: list[str], texts: list[str]
) -> None:
    """Halves of characters and beginnings of stop strings wait, and so do their tokens."""
    streamed = stream([ID[piece] for piece in pieces], stop)
    assert streamed.texts == texts
    if stop and streamed.matched:
        assert streamed.tokens == [(ID[b"c"],), (), (), ()]


def test_an_included_stop_string_keeps_all_tokens_of_the_character_that_it_cuts() -> None:
    ids = [ID[b"\xc3"], ID["中a".encode()]]
    assert stream(ids, ["中"], include_stop=True) == ([(), tuple(ids)], ["", "\ufffd中"], "中")


def test_a_stop_id_adds_its_token_but_no_text() -> None:
    text = TextStream(TOKENIZER, SamplingParams())
    text.push(ID[b"a"])
    text.push(ID[b"c"], silent=True)
    assert text.release(final=True) == ((ID[b"a"], ID[b"c"]), "a")


def test_without_a_tokenizer_tokens_flow_and_text_is_empty() -> None:
    text = TextStream(None, SamplingParams())
    assert text.push(5) is None
    assert text.release(final=False) == ((5,), "")
    assert text.release(final=True) == ((), "")
