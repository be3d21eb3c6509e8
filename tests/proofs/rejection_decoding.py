"""A TreeModel as the draft of rejection sampling, drawing through the engine's own code."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from tree_decoding import PROMPT
from tree_model import TreeModel

from eagle3_jax.sampling.rows import SamplingRows
from eagle3_jax.speculative.drafts import Drafts, draw_with_probs

DrawWithProbs = Callable[..., tuple[jax.Array, jax.Array]]


@dataclass(frozen=True)
class RejectionDrafter:
    """Drafts k tokens a row. target_ids: the ids of the model's columns, None for all.

    Where `lost` says so of the last token, the draft has lost its mind: its logits are NaN.
    """

    model: TreeModel
    options: SamplingRows
    k: int
    target_ids: tuple[int, ...] | None = None
    lost: tuple[int, ...] = ()
    draw: DrawWithProbs = draw_with_probs

    @cached_property
    def _draw(self) -> DrawWithProbs:
        """Compiled here, as it is now."""
        return jax.jit(lambda *inputs: self.draw(*inputs, vocab_size=self.model.vocab))

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
            positions = jnp.asarray(len(PROMPT) + lengths + step)[:, None]
            drawn, distribution = self._draw(
                jnp.asarray(logits)[:, None], positions, self.options, ids
            )
            history[rows, lengths + step] = np.maximum(np.asarray(drawn)[:, 0], 0)
            distributions.append(distribution[:, 0])
        drafted = [history[rows, lengths + step] for step in range(self.k)]
        return Drafts(jnp.asarray(np.stack(drafted, axis=1)), jnp.stack(distributions, axis=1))
