"""Interfaces of grammars: the tokens that may come next, also after drafts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from eagle3_jax.sampling.token_mask import WORD_BITS

if TYPE_CHECKING:
    from eagle3_jax.engine.grammars.faults import Fault

NO_GRAMMARS = (
    "structured_outputs, strict tools and thinking budgets need llguidance (pip install "
    "'eagle3-jax[grammar]'), a tokenizer that gives the bytes of its tokens, an EOS id, and "
    "coupled drafts"
)


GRAMMAR_BYTES = 64 * 2**20
"""A compiled grammar that holds more is not cached; a server refuses it."""


class TooComplexError(ValueError):
    """Compiling a grammar takes too much time or memory, or the result is too large."""


class FormRefusedError(ValueError):
    """A form cannot be compiled or satisfied; `field` is the request field at fault."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class GrammarsBusyError(Exception):
    """A grammar could not be tried in time because the machine is busy."""


class GrammarFailedError(Exception):
    """A grammar cannot compute a mask because it hit a limit, which the message names."""


class Matcher(Protocol):
    """State of one answer in its grammar.

    `fill` may take long, in another thread than `commit`; concurrent fills wait for each other.
    """

    @property
    def terminated(self) -> bool:
        """True if an EOS id has ended it; no more fills or tokens follow."""
        ...

    @property
    def free_tokens(self) -> float:
        """Number of next tokens that need no mask, whatever they are.

        A token that ends this freedom early is the sequence's pause id, after which devices wait.
        """
        ...

    def fill(self, masks: np.ndarray, draft_ids: Sequence[int]) -> list[int]:
        """Fill masks uint32 [rows, words]: row j allows the tokens after the first j drafts.

        The masks allow everything before; the matcher's own state does not change. Rows after a
        draft that stays barred or ends the answer are left open, because they cannot be committed.
        In a dead end a row allows nothing. Returns the drafts, with a barred one replaced by the
        only allowed token if there is just one. Raises GrammarFailedError if the first row cannot
        be computed.
        """
        ...

    def commit(self, token: int) -> None:
        """Advance by a token of the answer."""

    def restart(self) -> None:
        """Return to the start of the answer."""


class CompiledGrammar(Protocol):
    """A compiled constraint with which answers can start at once."""

    def start(self) -> Matcher:
        """Return a matcher at the start of an answer."""
        ...


class Footprint(NamedTuple):
    """Bytes that a compiled grammar holds, and the bytes it gains per mask of an answer."""

    held_bytes: int
    mask_bytes: int


class Vocabulary(NamedTuple):
    """Input of grammar compilation: bytes of each token, special ids and EOS ids."""

    tokens: Sequence[bytes]
    special_ids: Sequence[int]
    eos_ids: Sequence[int]


class Trial(Protocol):
    """Compiles grammars, in llguidance's form, where this can do no harm."""

    def __call__(self, grammar: str, limits: Mapping[str, int]) -> Footprint:
        """Try a grammar; raise ValueError if it must not be compiled here, or GrammarsBusyError."""
        ...

    def find_fault(
        self, parts: Sequence[tuple[str, Any]], limits: Mapping[str, int]
    ) -> "Fault | None":
        """Find the part (grammar, JSON schema or None) of a refused form that is refused alone."""
        ...


class Grammars(Protocol):
    """Compiles constraints. Thread-safe."""

    def known(self, constraint: StructuredOutputs) -> CompiledGrammar | None:
        """Return a recently compiled constraint at once, if it is cached."""
        ...

    def compile(self, constraint: StructuredOutputs) -> CompiledGrammar:
        """Compile a constraint or find it cached; raise FormRefusedError if it cannot be used."""
        ...


class GrammarCompiler(Grammars, Protocol):
    """Grammars that a server can try before compiling them."""

    def prepare(self) -> Vocabulary:
        """Do the work that would slow down the first compilation."""
        ...

    def try_by(self, trial: Trial) -> None:
        """Try every grammar with `trial` before compiling it."""


@runtime_checkable
class GrammarTokenizer(Protocol):
    """Tokenizer methods that grammars need."""

    @property
    def special_tokens(self) -> Sequence[Any]:
        """Special tokens, each with a token_id; text that only looks like one is none."""
        ...

    def token_bytes(self, token_id: int) -> bytes: ...
    def encode(self, text: str) -> list[int]: ...


def reject_from(row: int, masks: np.ndarray, draft_ids: Sequence[int]) -> list[int]:
    """Return the drafts with a barred id in that row, so that no later row can be committed."""
    drafts, barred = list(draft_ids), barred_id(masks[row])
    if drafts and barred is not None:
        drafts[row] = barred
    return drafts


def barred_id(mask: np.ndarray) -> int | None:
    """Return the first id that a mask [words] bars, if any."""
    (words,) = np.nonzero(~mask)
    if not len(words):
        return None
    allowed = int(mask[words[0]])
    return int(words[0]) * WORD_BITS + (~allowed & (allowed + 1)).bit_length() - 1
