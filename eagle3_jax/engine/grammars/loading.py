"""Load the grammar library, if it is installed."""

from collections.abc import Collection
from importlib.util import find_spec

from eagle3_jax.engine.grammars.interface import GrammarCompiler, GrammarTokenizer


def load_grammars(
    tokenizer: object, vocab_size: int, eos_token_ids: Collection[int]
) -> GrammarCompiler | None:
    """Return grammars over this tokenizer; None without llguidance, token bytes or an EOS id."""
    if find_spec("llguidance") is None or not eos_token_ids:
        return None
    if not isinstance(tokenizer, GrammarTokenizer):
        return None
    from eagle3_jax.engine.grammars.llguidance_grammars import LLGuidanceGrammars

    return LLGuidanceGrammars(tokenizer, vocab_size, eos_token_ids)
