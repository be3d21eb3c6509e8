"""Small stores to write, damage and read."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from convert.store.manifest import Origin
from convert.store.parameter import Parameter
from convert.store.source import SourceFile

ITEM_BYTES = 40_000
ORIGIN = Origin(
    source=(SourceFile("model.safetensors", 123, "ab"),),
    arch="gfx950",
    options={"int4_order": "linear"},
    formats={"layers.0.mlp.experts.up_proj": {"weights": "int4_group", "activations": "none"}},
    tensors={"model.norm.weight": (64,)},
)


def arrays() -> dict[str, np.ndarray]:
    """Two layers with stacked experts in several dtypes, a scalar and an embedding."""
    noise = np.random.default_rng(0)
    made = {
        "embed_tokens.embedding": noise.normal(size=(64, 96)).astype(jnp.bfloat16),
        "norm.weight": noise.normal(size=64).astype(np.float32),
        "count": np.array(7, np.int32),
    }
    for layer in range(2):
        module = f"layers.{layer}."
        made |= {
            module + "input_layernorm.weight": noise.normal(size=96).astype(jnp.bfloat16),
            module + "self_attn.o_proj.kernel": noise.normal(size=(96, 64)).astype(np.float16),
            module + "self_attn.q_proj.values": noise.normal(size=(64, 96)).astype(
                jnp.float8_e4m3fn
            ),
            module + "self_attn.q_proj.scale": noise.random(64, np.float32),
            module + "mlp.experts.up_proj.values": noise.integers(0, 256, (8, 96, 64), np.uint8),
            module + "mlp.experts.up_proj.scale": noise.random((8, 96, 4)).astype(jnp.bfloat16),
        }
    return made


def parameters(values: dict[str, np.ndarray]) -> list[Parameter]:
    """Parameters that read themselves from memory."""
    return [Parameter(path, v.shape, v.dtype, v.copy) for path, v in values.items()]


def source_directory(parent: Path) -> Path:
    """A directory with the files that are copied beside a store."""
    directory = parent / "source"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text("{}")
    (directory / "README.md").write_text("not copied")
    return directory
