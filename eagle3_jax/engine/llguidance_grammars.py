"""Grammars by llguidance, from the extra `grammar`."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, grammar_from

from eagle3_jax.engine.grammar import GrammarTokenizer
from eagle3_jax.structured_outputs import WHITESPACE, StructuredOutputs
from eagle3_jax.token_mask import WORD_BITS

MAX_KNOWN = 64
"""Constraints whose compiled form is kept."""
SHORT_SCHEMAS = {"true": "{}", "false": '{"enum":[]}'}
"""Schemas that are no objects, in objects that mean the same."""


class LLGuidanceGrammars:
    """Compiles constraints for one tokenizer; a constraint that was seen lately starts at once."""

    def __init__(
        self, tokenizer: GrammarTokenizer, vocab_size: int, eos_token_ids: Collection[int]
    ):
        self._source = _Source(tokenizer, vocab_size, min(eos_token_ids))
        self._eos = frozenset(eos_token_ids)
        self._compile = lru_cache(maxsize=MAX_KNOWN)(self._compile_anew)

    def start(self, constraint: StructuredOutputs) -> "LLGuidanceMatcher":
        """See Grammars."""
        compiled = self._compile(replace(constraint, begins_after=None))
        return LLGuidanceMatcher(compiled, self._eos, constraint.begins_after)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        return LLTokenizer(TokenizerWrapper(self._source), eos_token=sorted(self._eos))

    def _compile_anew(self, constraint: StructuredOutputs) -> LLMatcher:
        try:
            grammar = _grammar(constraint)
        except ValueError as error:
            raise ValueError(f"structured_outputs: {error}") from error
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if not matcher.is_error():
            # The first mask shows whether there is anything to begin with.
            matcher.compute_bitmask()
            if matcher.is_error():
                raise ValueError("no answer satisfies structured_outputs")
        if matcher.is_error():
            raise ValueError(f"structured_outputs: {matcher.get_error()}")
        return matcher


class LLGuidanceMatcher:
    """See Matcher. Drafts are followed by a copy, which costs microseconds."""

    def __init__(
        self, start: LLMatcher, eos_token_ids: frozenset[int], begins_after: int | None = None
    ):
        self.terminated = False
        self._start = start
        self._eos = eos_token_ids
        self._begins_after = begins_after
        self.restart()

    def fill(self, masks: np.ndarray, draft_ids: Sequence[int]) -> list[int]:
        """See Matcher."""
        matcher, begun, drafts = self._matcher, self._begun, list(draft_ids)
        for row, mask in enumerate(masks):
            if begun:
                _write_mask(matcher, mask)
            else:
                _bar(mask, self._eos)
            if row == len(drafts):
                break
            draft = drafts[row] if _allows(mask, drafts[row]) else _only_token(mask)
            if draft is None or draft in self._eos:
                break
            if begun:
                matcher = matcher.deep_copy() if matcher is self._matcher else matcher
                matcher.consume_token(draft)
            begun |= draft == self._begins_after
            drafts[row] = draft
        return drafts

    def commit(self, token: int) -> None:
        """See Matcher. A token that was barred leaves a dead end behind."""
        if self._begun:
            self._matcher.consume_token(token)
        self._begun |= token == self._begins_after
        self.terminated = token in self._eos

    def restart(self) -> None:
        """See Matcher."""
        self._matcher = self._start.deep_copy()
        self._begun = self._begins_after is None
        self.terminated = False


class _Source:
    """A tokenizer in the form that llguidance asks for; ids the tokenizer lacks have no bytes."""

    bos_token_id = None

    def __init__(self, tokenizer: GrammarTokenizer, vocab_size: int, eos_token_id: int):
        self.eos_token_id = eos_token_id
        self.special_token_ids = [token.token_id for token in tokenizer.special_tokens]
        self._tokenizer, self._vocab_size = tokenizer, vocab_size

    @property
    def tokens(self) -> list[bytes]:
        return [self._tokenizer.token_bytes(token) for token in range(self._vocab_size)]

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode())


def _grammar(constraint: StructuredOutputs) -> str:
    if constraint.regex is not None:
        return LLMatcher.grammar_from_regex(constraint.regex)
    if constraint.choice is not None:
        return grammar_from("choice", json.dumps(constraint.choice))
    if constraint.grammar is not None:
        return grammar_from("grammar", constraint.grammar)
    schema = '{"type":"object"}' if constraint.json_object else constraint.json
    assert isinstance(schema, str), "a constraint holds its schema as text"
    schema = SHORT_SCHEMAS.get(schema, schema)
    return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITESPACE})


def _write_mask(matcher: LLMatcher, mask: np.ndarray) -> None:
    """Nothing is allowed by a matcher that has failed or fails now."""
    if not matcher.is_error():
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if matcher.is_error():
        mask[:] = 0


def _bar(mask: np.ndarray, tokens: Iterable[int]) -> None:
    for token in tokens:
        mask[token // WORD_BITS] &= ~np.uint32(1 << token % WORD_BITS)


def _only_token(mask: np.ndarray) -> int | None:
    """The one token that is allowed, None if there are more or none."""
    (words,) = np.nonzero(mask)
    if len(words) != 1 or int(mask[words[0]]).bit_count() != 1:
        return None
    return int(words[0]) * WORD_BITS + int(mask[words[0]]).bit_length() - 1


def _allows(mask: np.ndarray, token: int) -> bool:
    return bool(mask[token // WORD_BITS] >> np.uint32(token % WORD_BITS) & 1)
