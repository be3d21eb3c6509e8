"""Run our model of a checkpoint with one layer in memory at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from convert.activations import choose_activations
from convert.fill import named_variables, read_value
from convert.load import open_target
from convert.models.vision import PARTS as VISION_PARTS
from eagle3_jax.layers.quantized import quantize_structure
from eagle3_jax.layers.rope import RopeTables
from eagle3_jax.models.target import DecoderLayer


class OurModel:
    """The abstract target of a published or converted directory, filled layer by layer."""

    def __init__(self, directory: Path):
        self._model, self._source = open_target(directory, jnp.float32)
        quantize_structure(self._model, choose_activations(self._source.formats, False))
        self._variables = named_variables(self._model)
        self.config = self._model.config
        self._source.check(self._variables, VISION_PARTS)

    def embed(self, token_ids: list[int]) -> np.ndarray:
        """Return embeddings, [1, tokens, hidden]."""
        return self._with(
            "embed_tokens", lambda: self._model.embed_tokens(jnp.asarray([token_ids]))
        )

    def layer(self, index: int, x: np.ndarray) -> np.ndarray:
        """Run one decoder layer with causal attention over the rows of `x`."""
        positions = jnp.arange(x.shape[1])[None]
        rope, layer = self._model.rope(positions), self._model.layers[index]
        return self._with(f"layers.{index}", lambda: _run_layer(layer, jnp.asarray(x), rope))

    def logits(self, x: np.ndarray) -> np.ndarray:
        """Apply the final norm and the head."""
        normed = self._with("norm", lambda: self._model.norm(jnp.asarray(x)))
        return self._with("lm_head", lambda: self._model.lm_head(jnp.asarray(normed)))

    def _with(self, prefix: str, run: Callable[[], jax.Array]) -> np.ndarray:
        """Run a function with the parameters of one submodule loaded; unload them afterwards."""
        own: dict[str, nnx.Variable[Any]] = {
            path: variable
            for path, variable in self._variables.items()
            if path.startswith(f"{prefix}.")
        }
        abstract = {path: variable.get_value() for path, variable in own.items()}
        for path, variable in own.items():
            variable.set_value(read_value(self._source, path, variable))
        result = np.asarray(run())
        for path, variable in own.items():
            variable.set_value(abstract[path])
        return result


@nnx.jit
def _run_layer(layer: DecoderLayer, x: jax.Array, rope: RopeTables) -> jax.Array:
    return layer(x, rope, (), None)[0]
