"""The tie rule where caches are float8: scores of a pass that attends to rows rounded so."""

from collections.abc import Collection

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from eagle3_jax.cache import QuantizedPool, view_pages
from eagle3_jax.models.target import Target
from eagle3_tools.bench.equality.ties import Features, Scorer


class Float8Scorer(Scorer):
    """scale: of every pool. The router's margins are still those of rows that nothing rounds."""

    def __init__(
        self, target: Target, max_len: int, eos_token_ids: Collection[int], *, scale: float
    ) -> None:
        super().__init__(target, max_len, eos_token_ids)
        self._scale = jnp.float32(scale)

    def logits(
        self, token_ids: Int[Array, "1 seq"], features: Features
    ) -> Float[Array, "1 seq vocab"]:
        """In one pass, through pages of one sequence; without images."""
        assert not features
        return _cached_pass(self._target, token_ids, self._scale)


@nnx.jit
def _cached_pass(
    target: Target, token_ids: Int[Array, "1 seq"], scale: Float[Array, ""]
) -> Float[Array, "1 seq vocab"]:
    length = token_ids.shape[1]
    positions = jnp.arange(length)[None]
    pages = view_pages(jnp.zeros((1, 1), jnp.int32), positions, positions >= 0, length)
    empty = [jnp.zeros((1, length, *row), jnp.float8_e4m3fn) for row in target.pool_rows]
    pools = tuple(QuantizedPool(rows, scale) for rows in empty)
    hidden, _, _ = target(token_ids, positions, (), pools, pages)
    return target.logits(hidden)
