"""Matchers of grammars: masks behind drafts of chains and trees, and compiled grammars kept."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spelling_tokenizer import EOS, PIECES, SpellingTokenizer
from tiny import VOCAB

from eagle3_jax.engine.engine import load_grammars
from eagle3_jax.engine.grammars.interface import Footprint, GrammarFailedError, Grammars, Matcher
from eagle3_jax.engine.grammars.llguidance_grammars import GrammarCache
from eagle3_jax.engine.grammars.masking import fill_nodes
from eagle3_jax.engine.grammars.matchers import ThinkingMatcher, TriggeredGrammar
from eagle3_jax.sampling.structured_outputs import (
    MAX_CONSTRAINT_BYTES,
    StructuredOutputs,
    ThinkingBudget,
)
from eagle3_jax.sampling.token_mask import ALL_ALLOWED, open_masks, unpack_mask

pytest.importorskip("llguidance")
from eagle3_jax.engine.grammars import llguidance_grammars
from eagle3_jax.engine.grammars.llguidance_grammars import (
    CACHE_BYTES,
    GRAMMAR_BYTES,
    LLGuidanceGrammars,
)

SCHEMA = {"type": "array", "items": {"enum": ["a", "the inner", 7]}, "minItems": 1, "maxItems": 3}
FORMS: dict[str, dict[str, Any]] = {
    "schema": {"json": SCHEMA},
    "object": {"json_object": True},
    "regex": {"regex": "[ab]{1,4}(-[0-9])*"},
    "Lark": {"grammar": 'start: item+\nitem: "(" item ")" | /[a-c]/'},
    "GBNF": {"grammar": 'root ::= "ab" [0-9]+'},
    "behind a mark": {"choice": ["abba", "aa", "a"], "begins_after": PIECES.index("!")},
}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    found = load_grammars(SpellingTokenizer(), VOCAB, (EOS,))
    assert found is not None
    return found


def masks_of(matcher: Matcher, drafts: list[int]) -> np.ndarray:
    """bool [rows, vocab]; rows that were left alone allow everything."""
    masks = open_masks(VOCAB, len(drafts) + 1)
    matcher.fill(masks, drafts)
    return np.asarray(unpack_mask(jnp.asarray(masks)))[:, :VOCAB]


def walk(grammars: Grammars, form: StructuredOutputs, rng: np.random.Generator) -> list[int]:
    """Some tokens of a random answer."""
    matcher, answer = grammars.compile(form).start(), []
    while len(answer) < 12 and not matcher.terminated:
        answer.append(int(rng.choice(np.flatnonzero(masks_of(matcher, [])[0]))))
        matcher.commit(answer[-1])
    return answer


@pytest.mark.parametrize("form", FORMS)
def test_each_row_is_the_mask_behind_the_drafts_before_it(grammars: Grammars, form: str) -> None:
    outputs, rng = StructuredOutputs(**FORMS[form]), np.random.default_rng(0)
    for _ in range(20):
        answer = walk(grammars, outputs, rng)
        start = int(rng.integers(0, len(answer)))
        matcher, drafts = grammars.compile(outputs).start(), answer[start : start + 4]
        for token in answer[:start]:
            matcher.commit(token)
        rows = masks_of(matcher, drafts)
        for row, draft in zip(rows, drafts, strict=False):
            assert (masks_of(matcher, [])[0] == row).all(), "a fill moved the matcher"
            assert row[draft] and not row.all()
            matcher.commit(draft)
        assert rows[-1].all() if matcher.terminated else (rows[-1] == masks_of(matcher, [])).all()


def test_rows_behind_a_barred_draft_are_left_alone(grammars: Grammars) -> None:
    matcher = grammars.compile(StructuredOutputs(regex="[ac]bc")).start()
    a, x = PIECES.index("a"), PIECES.index("x")
    rows = masks_of(matcher, [x, a, a])
    assert not rows[0][x] and rows[1:].all()


def test_where_one_token_is_allowed_it_takes_the_place_of_a_barred_draft(
    grammars: Grammars,
) -> None:
    matcher = grammars.compile(StructuredOutputs(regex="c[dx]fg")).start()
    c, d, f, g, wrong = (PIECES.index(letter) for letter in "cdfgz")
    masks = open_masks(VOCAB, 4)
    assert matcher.fill(masks, [wrong, d, wrong]) == [c, d, f]
    rows = np.asarray(unpack_mask(jnp.asarray(masks)))[:, :VOCAB]
    assert [int(row.sum()) for row in rows] == [1, 2, 1, 1] and rows[3][g]
    assert matcher.fill(open_masks(VOCAB, 4), [wrong] * 3) == [c, wrong, wrong]


def test_eos_may_come_exactly_where_the_answer_is_complete(grammars: Grammars) -> None:
    choices = ["ab", "abba", "b", "true story"]
    outputs, rng = StructuredOutputs(choice=choices), np.random.default_rng(1)
    for _ in range(30):
        matcher, text = grammars.compile(outputs).start(), ""
        while not matcher.terminated:
            allowed = masks_of(matcher, [])[0]
            assert allowed[EOS] == (text in choices)
            token = int(rng.choice(np.flatnonzero(allowed)))
            matcher.commit(token)
            text += "" if token == EOS else PIECES[token]
        assert text in choices


def test_restarted_matchers_are_new_ones(grammars: Grammars) -> None:
    for form in FORMS.values():
        matcher = grammars.compile(StructuredOutputs(**form)).start()
        first = masks_of(matcher, [])
        for token in walk(grammars, StructuredOutputs(**form), np.random.default_rng(2)):
            matcher.commit(token)
        matcher.restart()
        assert (masks_of(matcher, []) == first).all() and not matcher.terminated


@pytest.mark.parametrize(
    "form, naming",
    [
        ({"json": {"type": "texts"}}, "Invalid type: texts"),
        ({"json": "{"}, "structured_outputs: json is not a JSON schema"),
        ({"json": False}, "Unsatisfiable"),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 1}}, "Unsatisfiable"),
        ({"json": {"$ref": "#/nowhere"}}, "nowhere"),
        ({"json": "[" * 5000}, "recursion"),
        ({"regex": "(a"}, "unclosed"),
        ({"regex": r"[^\x00-\U0010ffff]"}, "no answer satisfies"),
        ({"grammar": "start: nothing"}, "nothing"),
        ({"grammar": "start: start"}, "no answer satisfies"),
    ],
)
def test_what_can_not_be_compiled_or_satisfied_is_said(
    grammars: Grammars, form: dict[str, Any], naming: str
) -> None:
    with pytest.raises(ValueError, match=naming):
        grammars.compile(StructuredOutputs(**form)).start()


@pytest.mark.parametrize(
    "form, naming",
    [
        ({}, "one of"),
        ({"regex": "a", "json_object": True}, "one of"),
        ({"regex": 5}, "regex"),
        ({"choice": []}, "choice"),
        ({"choice": "ab"}, "choice"),
        ({"choice": ["a", ""]}, "choice"),
        ({"json": 3}, "json"),
        ({"regex": "a" * (MAX_CONSTRAINT_BYTES + 1)}, "bytes"),
    ],
)
def test_what_is_no_form_is_refused(form: dict[str, Any], naming: str) -> None:
    with pytest.raises(ValueError, match=naming):
        StructuredOutputs(**form)


class Recording(SpellingTokenizer):
    """Remembers the lengths of what it encodes."""

    def encode(self, text: str) -> list[int]:
        self.lengths.append(len(text))
        return super().encode(text)

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []


def test_a_long_fixed_text_is_not_tokenised_whole_at_every_mask() -> None:
    """Python's tokenizer keeps everybody waiting: 45 ms for the first mask of these 100,000."""
    tokenizer, a = Recording(), PIECES.index("a")
    grammars = load_grammars(tokenizer, VOCAB, (EOS,))
    assert grammars is not None
    matcher = grammars.compile(StructuredOutputs(regex="a{50000}b")).start()
    for _ in range(5):
        assert masks_of(matcher, [])[0][a]
        matcher.commit(a)
    assert tokenizer.lengths and max(tokenizer.lengths) <= 1024


def test_a_grammar_that_meets_a_limit_fails_and_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its lexer is worn; a grammar beside it is kept."""
    limits = {**llguidance_grammars.LIMITS, "max_items_in_row": 20}
    monkeypatch.setattr(llguidance_grammars, "LIMITS", limits)
    grammars = load_grammars(SpellingTokenizer(), VOCAB, (EOS,))
    assert grammars is not None
    other = StructuredOutputs(regex="a")
    ambiguous = StructuredOutputs(grammar='start: e\ne: e e | "a" "b"')
    grammars.compile(other)
    matcher = grammars.compile(ambiguous).start()
    with pytest.raises(GrammarFailedError, match="items"):
        for letter in "ab" * 45:
            masks_of(matcher, [])
            matcher.commit(PIECES.index(letter))
    assert grammars.known(other) and grammars.known(ambiguous) is None


def test_grammars_need_bytes_of_tokens_and_an_end() -> None:
    assert load_grammars(SpellingTokenizer(), VOCAB, ()) is None
    assert load_grammars(None, VOCAB, (EOS,)) is None


LETTERS = [StructuredOutputs(regex="ab" * n) for n in range(1, 33)]


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
    return [form for form in LETTERS if grammars.known(form)]


@pytest.mark.parametrize("held_bytes", [GRAMMAR_BYTES, GRAMMAR_BYTES // 3])
def test_the_cache_is_bounded_by_the_bytes_of_what_it_keeps(held_bytes: int) -> None:
    grammars = grammars_of(held_bytes)
    for form in LETTERS:
        grammars.compile(form)
        grammars.compile(LETTERS[0])
        assert grammars._cache._sum() <= CACHE_BYTES
    assert len(kept(grammars)) == CACHE_BYTES // held_bytes
    assert grammars.known(LETTERS[0]), "what is used again is kept longest"


def test_looking_a_grammar_up_is_a_use_of_it() -> None:
    cache: Any = GrammarCache(most_bytes=2, most_bytes_each=1)
    for key in "aab":
        cache.put(key, Footprint(1, 0))
    assert cache.get("a")
    cache.put("c", Footprint(1, 0))
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]


def test_a_grammar_that_grows_by_its_answers_counts_for_what_it_has_grown_to() -> None:
    grammars = grammars_of(GRAMMAR_BYTES // 2, mask_bytes=GRAMMAR_BYTES // 8)
    matcher = grammars.compile(LETTERS[0]).start()
    for _ in range(4):
        matcher.fill(open_masks(VOCAB, 1), [])
        assert grammars.known(LETTERS[0])
    matcher.fill(open_masks(VOCAB, 1), [])
    assert grammars.known(LETTERS[0]) is None and grammars._cache._sum() == 0
    masks = open_masks(VOCAB, 1)
    matcher.fill(masks, [])
    assert not np.all(masks == ~np.uint32(0)), "answers under way go on"


FORM = StructuredOutputs(regex="(ab|ba|cd){2,9}")
PARENTS = st.lists(st.integers(0, 9), max_size=9).map(
    lambda x: [p % (i + 1) for i, p in enumerate(x)]
)


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    grammars = load_grammars(SpellingTokenizer(), VOCAB, (EOS,))
    assert grammars
    return grammars.compile(FORM).start()


def alone(matcher: Matcher, drafts: Sequence[int]) -> tuple[np.ndarray, list[int]]:
    masks = open_masks(VOCAB, 1 + len(drafts))
    return masks, matcher.fill(masks, drafts)


@given(
    PARENTS, st.lists(st.sampled_from([PIECES.index(c) for c in "abcd"]), min_size=9, max_size=9)
)
def test_a_nodes_mask_is_that_of_the_chain_to_it(
    matcher: Matcher, parents: list[int], tokens: list[int]
) -> None:
    masks = open_masks(VOCAB, 1 + len(parents))
    drafts = fill_nodes(matcher, masks, tokens[: len(parents)], parents)
    for node in range(1, 1 + len(parents)):
        path = [node]
        while parents[path[0] - 1]:
            path.insert(0, parents[path[0] - 1])
        expected, followed = alone(matcher, [tokens[i - 1] for i in path])
        np.testing.assert_array_equal(masks[[0, *path]], expected)
        assert [drafts[i - 1] for i in path] == followed


FIRST, LAST, BEGIN, OTHER, END = 1, 2, 3, 4, 31


class Form:
    """Allows no token and counts restarts."""

    terminated, free_tokens = False, 0

    def __init__(self) -> None:
        self.restarts, self.committed = 0, list[int]()

    def fill(self, masks: np.ndarray, draft_ids: Sequence[int]) -> list[int]:
        masks[:] = 0
        return list(draft_ids)

    def commit(self, token: int) -> None:
        self.committed.append(token)

    def restart(self) -> None:
        self.restarts += 1


def open_rows(masks: np.ndarray) -> list[int]:
    return [row for row, mask in enumerate(masks) if (mask == ALL_ALLOWED).all()]


def test_a_form_holds_from_its_first_token_to_its_last_each_time_from_its_start() -> None:
    form = Form()
    matcher, masks = TriggeredGrammar(form, FIRST, LAST), open_masks(64, 5)
    for token in (OTHER, FIRST, OTHER):
        assert matcher.free_tokens == (0 if FIRST in form.committed else math.inf)
        matcher.commit(token)
    assert matcher.fill(masks, [OTHER, LAST, OTHER, OTHER]) == [OTHER, LAST, OTHER, OTHER]
    assert open_rows(masks) == [2, 3, 4]
    for token in (LAST, OTHER, FIRST):
        matcher.commit(token)
    assert (form.committed, form.restarts) == ([FIRST, OTHER, LAST, FIRST], 2)


@pytest.mark.parametrize(("committed", "row"), [([], 2), ([OTHER], 1), ([OTHER] * 2, 0)])
def test_behind_the_budget_nothing_but_the_end_of_thinking_may_come(
    committed: list[int], row: int
) -> None:
    matcher = ThinkingMatcher(ThinkingBudget(2, (END, LAST)), None)
    for token in committed:
        matcher.commit(token)
    assert matcher.free_tokens == row
    masks, drafts = open_masks(64, 4), [OTHER] * 3
    drafts[row] = END
    assert matcher.fill(masks, [OTHER] * 3) == drafts
    assert open_rows(masks) == [other for other in range(4) if other != row]
    assert masks[row].tolist() == [1 << END, 0]


def test_thinking_that_has_ended_or_never_began_has_no_budget() -> None:
    for begins, token in ((None, END), (None, LAST), (BEGIN, OTHER)):
        matcher = ThinkingMatcher(ThinkingBudget(2, (END, LAST), begins), None)
        matcher.commit(token)
        assert matcher.free_tokens == math.inf
        matcher.restart()
        matcher.commit(OTHER if begins is None else BEGIN)
        assert matcher.free_tokens == (1 if begins is None else 2)
