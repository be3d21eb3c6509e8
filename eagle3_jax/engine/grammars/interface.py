"""What the engine needs of a grammar: which tokens may come next, also behind drafts."""

from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
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
"""A compiled grammar that holds more is not kept; a server refuses it."""


class TooComplexError(ValueError):
    """Compiling a grammar takes too much time or memory, or the result is too large."""


class FormRefusedError(ValueError):
    """A form can't be compiled or satisfied. field: the field of the request at fault."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class GrammarsBusyError(Exception):
    """A grammar could not be tried in time: the machine's fault, not the grammar's."""


class GrammarFailedError(Exception):
    """A grammar can't say what may come next, because a limit is in its way; tells which."""


class Matcher(Protocol):
    """Where one answer is in its grammar. Only `fill` may take time: it may run in a thread of its
    own while another notes what is committed; two at a time wait for each other."""

    @property
    def terminated(self) -> bool:
        """Whether an EOS id has ended it; then it is neither filled nor given tokens."""
        ...

    @property
    def free_tokens(self) -> float:
        """How many tokens may come next without a mask, whatever they are. One that ends this
        freedom early is the sequence's pause id: devices wait behind it."""
        ...

    def fill(self, masks: np.ndarray, draft_ids: Sequence[int]) -> list[int]:
        """Writes masks uint32 [rows, words], which allow everything: row j's is what may come
        behind the first j drafts. Itself it stays where it is.

        Returns the drafts, but in the place of a barred one the token that alone is allowed, if
        there is just one. Rows behind a draft that stays barred, or that ends the answer, are left
        alone: nothing there can be committed. In a dead end a row allows nothing. Raises
        GrammarFailedError when the first row can't be said.
        """
        ...

    def commit(self, token: int) -> None:
        """Moves on by a token that is part of the answer."""
        ...

    def restart(self) -> None:
        """Back to the start of the answer."""
        ...


class CompiledGrammar(Protocol):
    """A constraint that answers can begin with at once."""

    def start(self) -> Matcher:
        """A matcher at the start of an answer."""
        ...


class Footprint(NamedTuple):
    """Bytes a compiled grammar holds, and those it gains by one mask of an answer."""

    held_bytes: int
    mask_bytes: int


class Vocabulary(NamedTuple):
    """What a grammar is compiled for: the bytes of each token, the ids of special ones and ends."""

    tokens: Sequence[bytes]
    special_ids: Sequence[int]
    eos_ids: Sequence[int]


class Trial(Protocol):
    """Compiles grammars, as llguidance reads them, where that can do no harm."""

    def __call__(self, grammar: str, limits: Mapping[str, int]) -> Footprint:
        """Try one grammar. Raises ValueError that says why it must not be compiled here, and
        GrammarsBusyError."""
        ...

    def find_fault(
        self, parts: Sequence[tuple[str, Any]], limits: Mapping[str, int]
    ) -> "Fault | None":
        """Find the part of a refused form that is refused alone. Each part is its grammar, and its
        JSON schema or None."""
        ...


class Grammars(Protocol):
    """Compiles constraints; may be called from any thread."""

    def known(self, constraint: StructuredOutputs) -> CompiledGrammar | None:
        """One that was compiled lately, at once."""
        ...

    def compile(self, constraint: StructuredOutputs) -> CompiledGrammar:
        """Compiles one, or finds it known. FormRefusedError says what is wrong with the constraint:
        it can't be read, can't be satisfied, or is too complex."""
        ...


class GrammarCompiler(Grammars, Protocol):
    """Grammars that a server can have tried."""

    def prepare(self) -> Vocabulary:
        """Does what would make the first one slow."""
        ...

    def try_by(self, trial: Trial) -> None:
        """From now on every grammar is tried before it is compiled."""
        ...


@runtime_checkable
class GrammarTokenizer(Protocol):
    """What grammars need of a tokenizer."""

    @property
    def special_tokens(self) -> Sequence[Any]:
        """Each with its token_id; text that merely looks like one is none."""
        ...

    def token_bytes(self, token_id: int) -> bytes: ...
    def encode(self, text: str) -> list[int]: ...


def reject_from(row: int, masks: np.ndarray, draft_ids: Sequence[int]) -> list[int]:
    """The drafts with a barred one in that row, so that nothing behind it can be committed."""
    drafts, barred = list(draft_ids), barred_id(masks[row])
    if drafts and barred is not None:
        drafts[row] = barred
    return drafts


def barred_id(mask: np.ndarray) -> int | None:
    """The first token that a mask [words] bars, if there is one."""
    (words,) = np.nonzero(~mask)
    if not len(words):
        return None
    allowed = int(mask[words[0]])
    return int(words[0]) * WORD_BITS + (~allowed & (allowed + 1)).bit_length() - 1


def load_grammars(
    tokenizer: object, vocab_size: int, eos_token_ids: Collection[int]
) -> GrammarCompiler | None:
    """Grammars over this tokenizer; None without llguidance, token bytes or an EOS id."""
    if find_spec("llguidance") is None or not eos_token_ids:
        return None
    if not isinstance(tokenizer, GrammarTokenizer):
        return None
    from eagle3_jax.engine.grammars.llguidance_grammars import LLGuidanceGrammars

    return LLGuidanceGrammars(tokenizer, vocab_size, eos_token_ids)
