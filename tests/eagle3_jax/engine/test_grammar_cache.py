"""Compiled grammars are kept by their bytes, also those they gain while they are used."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from spelling_tokenizer import EOS, SpellingTokenizer
from tiny import VOCAB

from eagle3_jax.engine.grammars.cache import GrammarCache
from eagle3_jax.engine.grammars.interface import Footprint
from eagle3_jax.engine.grammars.loading import load_grammars
from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from eagle3_jax.sampling.token_mask import open_masks

pytest.importorskip("llguidance")
from eagle3_jax.engine.grammars.llguidance_grammars import (
    CACHE_BYTES,
    GRAMMAR_BYTES,
    LLGuidanceGrammars,
)

FORMS = [StructuredOutputs(regex="ab" * n) for n in range(1, 33)]


class FixedFootprint:
    """A trial that finds the same bytes for every grammar."""

    def __init__(self, footprint: Footprint) -> None:
        self._footprint = footprint

    def __call__(self, grammar: str, limits: Mapping[str, int]) -> Footprint:
        return self._footprint

    def find_fault(self, parts: Sequence[tuple[str, Any]], limits: Mapping[str, int]) -> None:
        raise AssertionError("no form is refused")


def grammars_of(held_bytes: int, mask_bytes: int = 0) -> LLGuidanceGrammars:
    """All of whose grammars were found to hold so much."""
    grammars = load_grammars(SpellingTokenizer(), VOCAB, (EOS,))
    assert isinstance(grammars, LLGuidanceGrammars)
    grammars.try_by(FixedFootprint(Footprint(held_bytes, mask_bytes)))
    return grammars


def kept(grammars: LLGuidanceGrammars) -> list[StructuredOutputs]:
    return [form for form in FORMS if grammars.known(form)]


@pytest.mark.parametrize("held_bytes", [GRAMMAR_BYTES, GRAMMAR_BYTES // 3])
def test_the_cache_is_bounded_by_the_bytes_of_what_it_keeps(held_bytes: int) -> None:
    grammars = grammars_of(held_bytes)
    for form in FORMS:
        grammars.compile(form)
        grammars.compile(FORMS[0])
        assert grammars._cache._sum() <= CACHE_BYTES
    assert len(kept(grammars)) == CACHE_BYTES // held_bytes
    assert grammars.known(FORMS[0]), "what is used again is kept longest"


def test_looking_a_grammar_up_is_a_use_of_it() -> None:
    cache = GrammarCache[Footprint](most_bytes=2, most_bytes_each=1)
    for key in "aab":
        cache.put(key, Footprint(1, 0))
    assert cache.get("a")
    cache.put("c", Footprint(1, 0))
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]


def test_a_grammar_that_grows_by_its_answers_counts_for_what_it_has_grown_to() -> None:
    grammars = grammars_of(GRAMMAR_BYTES // 2, mask_bytes=GRAMMAR_BYTES // 8)
    matcher = grammars.compile(FORMS[0]).start()
    for _ in range(4):
        matcher.fill(open_masks(VOCAB, 1), [])
        assert grammars.known(FORMS[0])
    matcher.fill(open_masks(VOCAB, 1), [])
    assert grammars.known(FORMS[0]) is None and grammars._cache._sum() == 0
    masks = open_masks(VOCAB, 1)
    matcher.fill(masks, [])
    assert not np.all(masks == ~np.uint32(0)), "answers under way go on"
