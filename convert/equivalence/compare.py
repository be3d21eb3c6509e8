"""Run our model and transformers' layer by layer and measure their differences."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from convert.abstract_model import choose_activations
from convert.fill import named_variables, read_value
from convert.load import open_target
from convert.models.vision import PARTS as VISION_PARTS
from eagle3_jax.layers.quantized import quantize_structure
from eagle3_jax.layers.rope import RopeTables
from eagle3_jax.models.target import DecoderLayer

RELATIVE_RMS = 1e-4
"""Largest acceptable difference. Float32 sums of thousands of terms differ by 1e-6 of their size; a
wrong scale, order or norm differs by far more."""


@dataclass(frozen=True)
class Difference:
    """The difference of one stage: largest absolute, and RMS relative to the RMS of the output."""

    stage: str
    largest: float
    relative_rms: float

    @property
    def acceptable(self) -> bool:
        """True if rounding can explain the difference; NaN is never acceptable."""
        return self.relative_rms <= RELATIVE_RMS


def compare_layers(
    published: Path, ours: Path, layers: Sequence[int] | None, token_ids: list[int]
) -> Iterator[Difference]:
    """Compare the embedding, the selected layers (None: all) and the logits, one at a time.

    A layer that is not selected is skipped on both sides. Raises ImportError without torch,
    ValueError for a layer that does not exist, and the loading errors of either side.
    """
    require_transformers()
    from convert.equivalence.torch_model import TorchModel

    with ExitStack() as stack:
        mine, theirs = OurModel(ours), TorchModel(published, stack)
        chosen = range(mine.config.num_hidden_layers) if layers is None else layers
        outside = [i for i in chosen if not 0 <= i < mine.config.num_hidden_layers]
        if outside:
            raise ValueError(f"layers must be in 0..{mine.config.num_hidden_layers - 1}: {outside}")
        x = theirs.embed(token_ids)
        yield _difference("embedding", mine.embed(token_ids), x.numpy())
        for i in chosen:
            expected = theirs.layer(i, x)
            yield _difference(f"layer {i}", mine.layer(i, x.numpy()), expected.numpy())
            x = expected
        yield _difference("logits", mine.logits(x.numpy()), theirs.logits(x).numpy())


def require_transformers() -> None:
    """Raise ImportError, naming the extra, if torch or transformers is not installed."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{error}; transformers and torch come with pip install 'eagle3-jax[transformers]'"
        ) from error


def _difference(stage: str, ours: np.ndarray, theirs: np.ndarray) -> Difference:
    apart = ours.astype(np.float64) - theirs.astype(np.float64)
    size = np.sqrt(np.mean(np.square(theirs, dtype=np.float64)))
    rms = np.sqrt(np.mean(np.square(apart)))
    return Difference(stage, float(np.abs(apart).max()), float(rms / size))


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
