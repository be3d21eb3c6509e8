"""A model that is a table: logits for every history over a vocabulary of a few tokens."""

from itertools import product

import numpy as np


class TreeModel:
    """Histories of at most `depth` tokens; h is coded in base vocab, deeper tokens lower."""

    def __init__(self, vocab: int, depth: int, seed: int, scale: float = 1.5) -> None:
        rng = np.random.default_rng(seed)
        self.vocab = vocab
        self._tables = [
            rng.normal(scale=scale, size=(vocab**length, vocab)).astype(np.float32)
            for length in range(depth + 1)
        ]

    def moved(self, gap: float, depth: int, seed: int) -> "TreeModel":
        """A draft of this model: its logits and noise of size `gap`, down to `depth`."""
        other = TreeModel(self.vocab, depth, seed, scale=gap)
        for own, moved in zip(self._tables, other._tables, strict=False):
            moved += own
        return other

    def logits(self, histories: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """float32 [batch, vocab] after histories [batch, >= max(lengths)] of these lengths.

        A history deeper than the table has logits of 0: nobody may look at them.
        """
        found = np.zeros((len(lengths), self._tables[0].shape[1]), np.float32)
        for length, table in enumerate(self._tables):
            here = lengths == length
            code = np.zeros(int(here.sum()), np.int64)
            for token in histories[here, :length].T:
                code = code * self.vocab + token
            found[here] = table[code]
        return found


class ThirdsModel(TreeModel):
    """Distributions whose probabilities are thirds, some of them 0; of a draft, over `columns` ids
    only."""

    def __init__(self, vocab: int, depth: int, seed: int, columns: int | None = None) -> None:
        rng, self.vocab = np.random.default_rng(seed), vocab
        even = np.full(columns or vocab, 1 / (columns or vocab))
        with np.errstate(divide="ignore"):
            self._tables = [
                np.log(rng.multinomial(3, even, vocab**length) / 3).astype(np.float32)
                for length in range(depth + 1)
            ]


def all_strings(vocab: int, length: int) -> np.ndarray:
    """Every string of `length` tokens: int [vocab ** length, length]."""
    return np.array(list(product(range(vocab), repeat=length)), np.int32).reshape(-1, length)
