"""Decoding of a TreeModel, plain and speculative, with the engine's own sampler and verify."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from slot_rows import decoding_rows
from tree_model import TreeModel

from eagle3_jax.sampling.rows import SamplingRows
from eagle3_jax.sampling.sampler import sample
from eagle3_jax.speculative.propose import Drafts
from eagle3_jax.speculative.verify import VerifyResult

PROMPT = (0, 1)
"""What precedes every history; the last of it is the token whose KV is not written yet."""

Verify = Callable[..., VerifyResult]
"""Of coupled or of rejection sampling: the second input is drafts int [batch, k], or Drafts."""
Drafter = Callable[[np.ndarray, np.ndarray], np.ndarray | Drafts]
"""(histories, lengths) -> drafts."""


@dataclass(frozen=True)
class Decoder:
    """One sequence a row of `options`; sample is compiled here, as it is now."""

    model: TreeModel
    options: SamplingRows

    @cached_property
    def _draw(self) -> Callable[..., jax.Array]:
        return jax.jit(lambda *inputs: sample(*inputs))

    def plain(self, length: int) -> np.ndarray:
        """Tokens [batch, length], one at a time, each from its true history."""
        batch = len(self.options.temperature)
        tokens = np.zeros((batch, length), np.int32)
        for step in range(length):
            logits = self.model.logits(tokens, np.full(batch, step))
            positions = np.full((batch, 1), len(PROMPT) + step)
            chosen = self._draw(jnp.asarray(logits)[:, None], jnp.asarray(positions), self.options)
            tokens[:, step] = np.asarray(chosen)[:, 0]
        return tokens

    def drafts(self, histories: np.ndarray, lengths: np.ndarray, k: int) -> np.ndarray:
        """k tokens of this model after each history, with each row's own noise."""
        history = np.pad(histories, ((0, 0), (0, k)))
        for step in range(k):
            logits = jnp.asarray(self.model.logits(history, lengths + step))[:, None]
            positions = jnp.asarray(len(PROMPT) + lengths + step)[:, None]
            chosen = np.asarray(self._draw(logits, positions, self.options))[:, 0]
            history[np.arange(len(lengths)), lengths + step] = chosen
        return np.stack([history[np.arange(len(lengths)), lengths + j] for j in range(k)], axis=1)

    def one_round(
        self,
        decide: Verify,
        tokens: np.ndarray,
        lengths: np.ndarray,
        drafts: np.ndarray | Drafts,
        max_lens: np.ndarray,
    ) -> VerifyResult:
        """Verify these drafts after histories of these lengths."""
        ids = np.asarray(drafts.ids) if isinstance(drafts, Drafts) else drafts
        logits = self.row_logits(tokens, lengths, ids)
        seq_lens = len(PROMPT) + lengths - 1
        rows = decoding_rows(self.options, seq_lens, max_lens, ids.shape[1])
        return decide(jnp.asarray(logits), jax.tree.map(jnp.asarray, drafts), rows)

    def rounds(
        self, decide: Verify, drafter: Drafter, length: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rounds until every row has `length` tokens; returns them and each round's accepted
        drafts [batch, rounds], -1 once a row is full."""
        batch = len(self.options.temperature)
        tokens, lengths = np.zeros((batch, length + k + 1), np.int32), np.zeros(batch, np.int64)
        most, paths = np.full(batch, len(PROMPT) + length), []
        while (lengths < length).any():
            drafts = drafter(tokens, lengths)
            result = self.one_round(decide, tokens, lengths, drafts, most)
            live, accepted = lengths < length, np.asarray(result.num_accepted)
            for j, chosen in enumerate(np.asarray(result.token_ids).T):
                commits = live & (j <= accepted)
                tokens[commits, lengths[commits] + j] = chosen[commits]
            lengths = lengths + np.where(live, accepted + 1, 0)
            paths.append(np.where(live, accepted, -1))
        return tokens[:, :length], np.stack(paths, axis=1)

    def row_logits(self, tokens: np.ndarray, lengths: np.ndarray, drafts: np.ndarray) -> np.ndarray:
        """The target's logits of a round: row j follows the history and the first j drafts."""
        batch, k = drafts.shape
        history = np.pad(tokens, ((0, 0), (0, k + 1)))
        rows = np.zeros((batch, k + 1, self.model.vocab), np.float32)
        for j in range(k + 1):
            rows[:, j] = self.model.logits(history, lengths + j)
            if j < k:
                history[np.arange(batch), lengths + j] = drafts[:, j]
        return rows


def repeated(options: SamplingRows, times: int) -> SamplingRows:
    """Each row `times` times in a row."""
    return jax.tree.map(lambda x: jnp.repeat(x, times, axis=0), options)


def with_seeds(options: SamplingRows, seeds: np.ndarray) -> SamplingRows:
    """The first row, once for each seed (low words)."""
    spread: SamplingRows = jax.tree.map(
        lambda x: jnp.broadcast_to(x[:1], (len(seeds), *x.shape[1:])), options
    )
    words = np.stack([seeds, np.zeros_like(seeds)], axis=1).astype(np.uint32)
    return replace(spread, seed=jnp.asarray(words))


def strings_of(tokens: np.ndarray, vocab: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Each string among the rows and how often it occurs."""
    found, counts = np.unique(tokens, axis=0, return_counts=True)
    for string, count in zip(found, counts, strict=True):
        yield tuple(int(t) for t in string), int(count)


DrawWithProbs = Callable[..., tuple[jax.Array, jax.Array]]


@dataclass(frozen=True)
class RejectionDrafter:
    """Drafts k tokens a row. target_ids: the ids of the model's columns, None for all.

    Where `lost` says so of the last token, the draft has lost its mind: its logits are NaN.
    """

    model: TreeModel
    options: SamplingRows
    k: int
    draw: DrawWithProbs
    target_ids: tuple[int, ...] | None = None
    lost: tuple[int, ...] = ()

    def __call__(self, histories: np.ndarray, lengths: np.ndarray) -> Drafts:
        """Drafts behind each history, each with the distribution it was drawn from."""
        history, rows, distributions = (
            np.pad(histories, ((0, 0), (0, self.k))),
            np.arange(len(lengths)),
            [],
        )
        ids = None if self.target_ids is None else jnp.asarray(self.target_ids)
        for step in range(self.k):
            logits = self.model.logits(history, lengths + step)
            last = history[rows, np.maximum(lengths + step - 1, 0)]
            logits[np.isin(last, self.lost) & (lengths + step > 0)] = np.nan
            starts = jnp.asarray(len(PROMPT) + lengths - 1)
            drawn, distribution = self.draw(
                jnp.asarray(logits)[:, None], starts[:, None] + 1 + step, starts, self.options, ids
            )
            history[rows, lengths + step] = np.maximum(np.asarray(drawn)[:, 0], 0)
            distributions.append(distribution[:, 0])
        drafted = [history[rows, lengths + step] for step in range(self.k)]
        return Drafts(jnp.asarray(np.stack(drafted, axis=1)), jnp.stack(distributions, axis=1))
