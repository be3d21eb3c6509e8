"""What a checkpoint's context makes of an engine's sizes."""

import pytest
from tiny import TARGET

from eagle3_jax.engine import EngineConfig
from serve.pair.loading import fit_length


@pytest.mark.parametrize(
    ("context", "asked", "chunk"), [(2248, 16384, 2304), (2248, 2048, 2048), (256, 8192, 256)]
)
def test_a_chunk_is_no_longer_than_a_context(context: int, asked: int, chunk: int) -> None:
    """A published command asks for 16,384 tokens a chunk and contexts of 2,248."""
    config = EngineConfig(0, prefill_chunk=asked)
    found = fit_length(config, context, TARGET)
    assert (found.max_model_len, found.prefill_chunk) == (context, chunk)
