"""Masks behind drafts are those of the answers that the drafts would make."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from spelling_tokenizer import EOS, PIECES, SpellingTokenizer
from tiny import VOCAB

from eagle3_jax.engine.grammars.interface import Grammars, Matcher
from eagle3_jax.engine.grammars.loading import load_grammars
from eagle3_jax.sampling.structured_outputs import MAX_CONSTRAINT_BYTES, StructuredOutputs
from eagle3_jax.sampling.token_mask import open_masks, unpack_mask

pytest.importorskip("llguidance")
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


def test_before_the_mark_everything_but_eos_may_come(grammars: Grammars) -> None:
    mark = PIECES.index("!")
    matcher = grammars.compile(StructuredOutputs(regex="[ac]bc", begins_after=mark)).start()
    rows = masks_of(matcher, [5, mark, mark])
    assert (rows[:2].sum(1) == VOCAB - 1).all() and not rows[:2, EOS].any()
    assert not rows[2][mark] and rows[3].all()


def test_restarted_matchers_are_new_ones(grammars: Grammars) -> None:
    for form in FORMS.values():
        matcher = grammars.compile(StructuredOutputs(**form)).start()
        first = masks_of(matcher, [])
        for token in walk(grammars, StructuredOutputs(**form), np.random.default_rng(2)):
            matcher.commit(token)
        matcher.restart()
        assert (masks_of(matcher, []) == first).all() and not matcher.terminated


def test_a_dead_end_allows_nothing(grammars: Grammars) -> None:
    matcher = grammars.compile(StructuredOutputs(grammar='start: "a" more\nmore: more "b"')).start()
    rows = masks_of(matcher, [PIECES.index("a"), PIECES.index("b")])
    assert rows[0].any() and not rows[1].any() and rows[2].all()


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


def test_grammars_need_bytes_of_tokens_and_an_end() -> None:
    assert load_grammars(SpellingTokenizer(), VOCAB, ()) is None
    assert load_grammars(None, VOCAB, (EOS,)) is None
