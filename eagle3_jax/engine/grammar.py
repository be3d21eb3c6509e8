"""What the engine needs of a grammar: which tokens may come next, also behind drafts."""

from collections.abc import Collection, Sequence
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

import numpy as np

from eagle3_jax.structured_outputs import StructuredOutputs

NO_GRAMMARS = (
    "structured_outputs need llguidance (pip install 'eagle3-jax[grammar]'), a tokenizer that "
    "gives the bytes of its tokens, an EOS id, and coupled chains of drafts"
)


class Matcher(Protocol):
    """Where one answer is in its grammar."""

    @property
    def terminated(self) -> bool:
        """Whether an EOS id has ended it; then it is neither filled nor given tokens."""
        ...

    def fill(self, masks: np.ndarray, draft_ids: Sequence[int]) -> list[int]:
        """Writes masks uint32 [rows, words], which allow everything: row j's is what may come
        behind the first j drafts. Itself it stays where it is.

        Returns the drafts, but in the place of a barred one the token that alone is allowed, if
        there is just one. Rows behind a draft that stays barred, or that ends the answer, are left
        alone: nothing there can be committed. In a dead end a row allows nothing.
        """
        ...

    def commit(self, token: int) -> None:
        """Moves on by a token that is part of the answer."""
        ...

    def restart(self) -> None:
        """Back to the start of the answer."""
        ...


class Grammars(Protocol):
    """Compiles constraints; may be called from any thread."""

    def start(self, constraint: StructuredOutputs) -> Matcher:
        """A matcher at the start of an answer. ValueError says what is wrong with the constraint:
        it can't be read, can't be satisfied, or is too complex."""
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


def load_grammars(
    tokenizer: object, vocab_size: int, eos_token_ids: Collection[int]
) -> Grammars | None:
    """Grammars over this tokenizer; None without llguidance, token bytes or an EOS id."""
    if find_spec("llguidance") is None or not eos_token_ids:
        return None
    if not isinstance(tokenizer, GrammarTokenizer):
        return None
    from eagle3_jax.engine.llguidance_grammars import LLGuidanceGrammars

    return LLGuidanceGrammars(tokenizer, vocab_size, eos_token_ids)
