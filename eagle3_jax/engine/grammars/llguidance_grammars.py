"""Grammars by llguidance, from the extra `grammar`."""

import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from eagle3_jax.engine.grammars.faults import Fault, find_fault, grammar_text, plain
from eagle3_jax.engine.grammars.interface import (
    GRAMMAR_BYTES,
    Footprint,
    FormRefusedError,
    GrammarFailedError,
    GrammarTokenizer,
    Matcher,
    TooComplexError,
    Trial,
    Vocabulary,
    reject_from,
)
from eagle3_jax.engine.grammars.matchers import TriggeredGrammar
from eagle3_jax.sampling.structured_outputs import FormPart, StructuredOutputs
from eagle3_jax.sampling.token_mask import WORD_BITS

LIMITS = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}
"""llguidance's limits on the work and size of a grammar and of one mask. They bound neither seconds
nor bytes."""
CACHE_BYTES = 256 * 2**20
UNMEASURED = Footprint(8 * 2**20, 2**14)
"""Assumed footprint of a grammar without a trial."""
WORN = Footprint(GRAMMAR_BYTES + 1, 0)
"""Footprint of a grammar whose lexer hit a limit; it is not cached for others."""
FORCED_BYTES = 1024
"""Bytes of forced text that are tokenised: more than the longest token has."""
DEAD_END = "NoExtension"
"""Prefix of llguidance's error in a dead end, which is not a limit."""


class GrammarCache:
    """LRU cache of compiled grammars, limited by bytes in total and per entry. Thread-safe."""

    def __init__(self, most_bytes: int, most_bytes_each: int) -> None:
        self._most, self._most_each = most_bytes, most_bytes_each
        self._kept: OrderedDict[Hashable, "_Compiled"] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> "_Compiled | None":
        with self._lock:
            self._trim()
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Hashable, value: "_Compiled") -> None:
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            self._trim()

    def _sum(self) -> int:
        return sum(value.held_bytes for value in self._kept.values())

    def _trim(self) -> None:
        for key in [k for k, v in self._kept.items() if v.held_bytes > self._most_each]:
            del self._kept[key]
        while self._kept and self._sum() > self._most:
            self._kept.popitem(last=False)


class LLGuidanceGrammars:
    """Compiles constraints for one tokenizer and caches recent ones."""

    def __init__(
        self, tokenizer: GrammarTokenizer, vocab_size: int, eos_token_ids: Collection[int]
    ):
        self._source = _Source(tokenizer, vocab_size, min(eos_token_ids))
        self._eos = frozenset(eos_token_ids)
        self._cache = GrammarCache(CACHE_BYTES, GRAMMAR_BYTES)
        self._trial: Trial | None = None

    def known(self, constraint: StructuredOutputs) -> "LLGuidanceGrammar | None":
        compiled = self._cache.get(constraint.everywhere)
        return compiled and LLGuidanceGrammar(compiled, constraint)

    def compile(self, constraint: StructuredOutputs) -> "LLGuidanceGrammar":
        known = self.known(constraint)
        if known is not None:
            return known
        compiled = self._compile_anew(constraint)
        self._cache.put(constraint.everywhere, compiled)
        return LLGuidanceGrammar(compiled, constraint)

    def prepare(self) -> Vocabulary:
        assert self._tokenizer, "it is made when it is first asked for"
        return Vocabulary(self._source.tokens, self._source.special_token_ids, sorted(self._eos))

    def try_by(self, trial: Trial) -> None:
        self._trial = trial

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        return LLTokenizer(TokenizerWrapper(self._source), eos_token=sorted(self._eos))

    def _compile_anew(self, constraint: StructuredOutputs) -> "_Compiled":
        try:
            grammar = grammar_text(constraint)
        except ValueError as error:
            raise FormRefusedError(str(error), constraint.asked_by) from error
        try:
            footprint = self._trial(grammar, LIMITS) if self._trial else UNMEASURED
            return _Compiled(self._start(grammar), self._eos, footprint)
        except TooComplexError as error:
            raise self._refusal(constraint, str(error), slow=True) from error
        except ValueError as error:
            raise self._refusal(constraint, str(error)) from error

    def _start(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LLParserLimits(**LIMITS))
        # The first mask shows whether an answer can start.
        matcher.compute_bitmask()
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def _refusal(
        self, constraint: StructuredOutputs, reason: str, slow: bool = False
    ) -> FormRefusedError:
        """Make the error of a refused form; it names the part at fault if there is one."""
        field, schema, parts = constraint.asked_by, _schema(constraint), constraint.parts
        if not parts and schema is not None and not slow:
            parts = (FormPart(field, "", lambda: constraint, schema),)
        fault = self._fault(parts) if parts else None
        if fault is None:
            together = f"{len(parts)} schemas together: " if parts else ""
            return _refused(field, together, reason)
        part, label = parts[fault.part], ""
        if part.name:
            label = f"{part.name}: "
        if fault.pointer is not None:
            label += f"{fault.pointer} can't be enforced: "
        return _refused(part.field, label, fault.reason)

    def _fault(self, parts: Sequence[FormPart]) -> Fault | None:
        alone = [(grammar_text(part.alone()), part.schema) for part in parts]
        if self._trial is not None:
            return self._trial.find_fault(alone, LIMITS)
        *_, last = find_fault(alone, [self._error_of])
        return last if last.reason else None

    def _error_of(self, grammar: str) -> str | None:
        try:
            self._start(grammar)
        except ValueError as error:
            return str(error)
        return None


class _Compiled:
    """A grammar shared by answers. Copies of its matcher share one lexer, which `lock` protects.

    The lexer may be used by one thread at a time and grows as it meets new text.
    """

    def __init__(self, start: LLMatcher, eos: frozenset[int], footprint: Footprint) -> None:
        self.start, self.eos, self.footprint = start, eos, footprint
        self.num_masks = 0
        self.lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Bytes after compilation, plus an estimate of the growth since."""
        return self.footprint.held_bytes + self.num_masks * self.footprint.mask_bytes

    def write_mask(self, matcher: LLMatcher, mask: np.ndarray) -> str | None:
        """Write the next mask; return the limit that prevents it, if any.

        Nothing is allowed then, nor in a dead end.
        """
        self.num_masks += 1
        if not matcher.is_error():
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if not matcher.is_error():
            return None
        mask[:] = 0
        reason = plain(matcher.get_error())
        if reason.startswith(DEAD_END):
            return None
        self.footprint = WORN
        return reason


class LLGuidanceGrammar:
    """See CompiledGrammar."""

    def __init__(self, compiled: _Compiled, constraint: StructuredOutputs) -> None:
        self._compiled, self._constraint = compiled, constraint

    def start(self) -> Matcher:
        matcher = LLGuidanceMatcher(self._compiled, self._constraint.begins_after)
        between = self._constraint.between
        return matcher if between is None else TriggeredGrammar(matcher, *between)


class LLGuidanceMatcher:
    """See Matcher. A copy follows the drafts, which costs microseconds.

    Committed tokens are queued for the next fill, because llguidance may be busy in another thread.
    """

    free_tokens = 0

    def __init__(self, compiled: _Compiled, begins_after: int | None = None):
        self.terminated = False
        self._compiled = compiled
        self._begins_after = begins_after
        self._noted: deque[int | None] = deque([None])
        """Queued tokens; None restarts the answer."""

    def fill(self, masks: np.ndarray, draft_ids: Sequence[int]) -> list[int]:
        with self._compiled.lock:
            while self._noted:
                self._move(self._noted.popleft())
            return self._fill(masks, list(draft_ids))

    def commit(self, token: int) -> None:
        """See Matcher. A barred token leads to a dead end."""
        self._noted.append(token)
        self.terminated = token in self._compiled.eos

    def restart(self) -> None:
        self._noted.append(None)
        self.terminated = False

    def _move(self, token: int | None) -> None:
        if token is None:
            self._matcher = self._compiled.start.deep_copy()
            self._begun = self._begins_after is None
            return
        if self._begun:
            self._matcher.consume_token(token)
        self._begun |= token == self._begins_after

    def _fill(self, masks: np.ndarray, drafts: list[int]) -> list[int]:
        matcher, begun = self._matcher, self._begun
        for row, mask in enumerate(masks):
            if not begun:
                for token in self._compiled.eos:
                    mask[token // WORD_BITS] &= ~np.uint32(1 << token % WORD_BITS)
            elif (failure := self._compiled.write_mask(matcher, mask)) is not None:
                if row == 0:
                    raise GrammarFailedError(failure)
                return reject_from(row - 1, masks, drafts)
            if row == len(drafts):
                break
            draft = drafts[row] if _allows(mask, drafts[row]) else _only_token(mask)
            if draft is None or draft in self._compiled.eos:
                break
            if begun:
                matcher = matcher.deep_copy() if matcher is self._matcher else matcher
                matcher.consume_token(draft)
            begun |= draft == self._begins_after
            drafts[row] = draft
        return drafts


class _Source:
    """A tokenizer in the form that llguidance expects; ids that it lacks have no bytes."""

    bos_token_id = None

    def __init__(self, tokenizer: GrammarTokenizer, vocab_size: int, eos_token_id: int):
        self.eos_token_id = eos_token_id
        self.special_token_ids = [token.token_id for token in tokenizer.special_tokens]
        self._tokenizer, self._vocab_size = tokenizer, vocab_size

    @property
    def tokens(self) -> list[bytes]:
        return [self._tokenizer.token_bytes(token) for token in range(self._vocab_size)]

    def __call__(self, text: bytes) -> list[int]:
        # llguidance passes all forced text at every mask, but only its first bytes matter.
        return self._tokenizer.encode(text[:FORCED_BYTES].decode(errors="ignore"))


def _schema(constraint: StructuredOutputs) -> Mapping[str, Any] | None:
    """Return the JSON schema, if there is one that can be read."""
    with suppress(ValueError):
        return constraint.schema
    return None


def _refused(field: str, label: str, reason: str) -> FormRefusedError:
    if reason.startswith(DEAD_END):
        return FormRefusedError(f"{field}: {label}no answer satisfies it", field)
    return FormRefusedError(f"{field}: {label}{plain(reason)}", field)


def _only_token(mask: np.ndarray) -> int | None:
    """Return the only allowed token, or None if there are more or none."""
    (words,) = np.nonzero(mask)
    if len(words) != 1 or int(mask[words[0]]).bit_count() != 1:
        return None
    return int(words[0]) * WORD_BITS + int(mask[words[0]]).bit_length() - 1


def _allows(mask: np.ndarray, token: int) -> bool:
    return bool(mask[token // WORD_BITS] >> np.uint32(token % WORD_BITS) & 1)
