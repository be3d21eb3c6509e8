"""Run both models layer by layer and measure their differences."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from convert.equivalence.torch_family import require_transformers

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
    from convert.equivalence.our_model import OurModel
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


def _difference(stage: str, ours: np.ndarray, theirs: np.ndarray) -> Difference:
    apart = ours.astype(np.float64) - theirs.astype(np.float64)
    size = np.sqrt(np.mean(np.square(theirs, dtype=np.float64)))
    rms = np.sqrt(np.mean(np.square(apart)))
    return Difference(stage, float(np.abs(apart).max()), float(rms / size))
