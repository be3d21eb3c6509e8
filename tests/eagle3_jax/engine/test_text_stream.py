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
STOPS = ["ab", "abab", "b a", "é", "中", "c", "aab", "aé"]


class Streamed(NamedTuple):
    """What a stream handed out: tokens and text in pieces, and the stop string it matched."""

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
            tokens, piece = text.take(final=False)
            streamed.tokens.append(tokens)
            streamed.texts.append(piece)
            left = next(sizes, 1)
    tokens, piece = text.take(final=True)
    return Streamed([*streamed.tokens, tokens], [*streamed.texts, piece], matched)


def settled(ids: list[int]) -> str | None:
    """The text of all ids, or None while its end may still change."""
    text = TOKENIZER.decode(ids)
    return None if text.endswith("\ufffd") else text


def oracle(
    ids: list[int], stop: list[str], include_stop: bool, min_tokens: int
) -> tuple[list[int], str, str | None]:
    """Tokens, text and match, from whole decodes only."""
    search_from = 0
    for count in range(1, len(ids) + 1):
        text = settled(ids[:count])
        if count < min_tokens:
            search_from = search_from if text is None else len(text)
            continue
        if text is None:
            continue
        hits = [(text.find(s, search_from), s) for s in stop if s in text[search_from:]]
        if hits:
            start, found = min(hits, key=lambda hit: hit[0])
            cut = start + len(found) if include_stop else start
            kept = [i for i in range(count) if end_of(ids, i) <= cut]
            if include_stop and (not kept or end_of(ids, kept[-1]) < cut):
                kept.append(len(kept))
            return [ids[i] for i in kept], text[:cut], found
    return ids, TOKENIZER.decode(ids), None


def end_of(ids: list[int], index: int) -> int:
    """Characters of text when token `index` is fully decoded."""
    texts = (settled(ids[:count]) for count in range(index + 1, len(ids) + 1))
    return next(len(text) for text in texts if text is not None)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    ids=st.lists(st.integers(0, len(PIECES) - 1), max_size=14),
    stop=st.lists(st.sampled_from(STOPS), max_size=3, unique=True),
    include_stop=st.booleans(),
    min_tokens=st.integers(0, 5),
    rounds=st.lists(st.integers(1, 4), max_size=14),
)
def test_any_stream_adds_up_to_the_whole_decode_cut_at_the_stop_string(
    ids: list[int], stop: list[str], include_stop: bool, min_tokens: int, rounds: list[int]
) -> None:
    streamed = stream(ids, stop, include_stop, min_tokens, rounds)
    tokens, text, matched = oracle(ids, stop, include_stop, min_tokens)
    assert streamed.matched == matched
    assert [t for piece in streamed.tokens for t in piece] == tokens
    assert "".join(streamed.texts) == text


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


def test_half_a_character_waits_for_its_other_half() -> None:
    ids = [ID[b"a"], ID[b"\xe4\xb8"], ID[b"\xad"], ID[b"b"]]
    assert stream(ids, []).texts == ["a", "", "中", "b", ""]


def test_half_a_character_at_the_end_becomes_a_replacement_character() -> None:
    assert stream([ID[b"a"], ID[b"\xc3"]], []).texts == ["a", "", "\ufffd"]


def test_bytes_that_form_no_character_do_not_stop_the_text() -> None:
    assert stream([ID[b"\xc3"], ID[b"\xc3"], ID[b"a"]], []).texts == ["", "", "\ufffd\ufffda", ""]


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


def test_what_may_begin_a_stop_string_is_held_back_with_its_tokens() -> None:
    streamed = stream([ID[b"c"], ID[b"a"], ID[b"a"], ID[b"ba"]], ["aab"])
    assert streamed.texts == ["c", "", "", ""]
    assert streamed.tokens == [(ID[b"c"],), (), (), ()]
    assert streamed.matched == "aab"


def test_what_was_held_back_comes_when_it_is_no_stop_string() -> None:
    streamed = stream([ID[b"a"], ID[b"a"], ID[b"c"]], ["aab"])
    assert streamed.texts == ["", "", "aac", ""]
    assert streamed.tokens == [(), (), (ID[b"a"], ID[b"a"], ID[b"c"]), ()]


def test_a_stop_id_adds_its_token_but_no_text() -> None:
    text = TextStream(TOKENIZER, SamplingParams())
    text.push(ID[b"a"])
    text.push(ID[b"c"], silent=True)
    assert text.take(final=True) == ((ID[b"a"], ID[b"c"]), "a")


def test_without_a_tokenizer_tokens_flow_and_text_is_empty() -> None:
    text = TextStream(None, SamplingParams())
    assert text.push(5) is None
    assert text.take(final=False) == ((5,), "")
    assert text.take(final=True) == ((), "")
