"""Small stores to write, damage and read."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np
import pytest

from convert.store.files import SourceFile
from convert.store.manifest import Origin
from convert.store.parameters import Parameter
from convert.store.writer import partial_directory, write_store

ITEM_BYTES = 40_000
ORIGIN = Origin(
    source=(SourceFile("model.safetensors", 123, 456, "ab"),),
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


def write_small(destination: Path, values: Sequence[Parameter] = (), **origin: Any) -> list[int]:
    """Writes the small store beside its source directory, or goes on with it; returns the bytes of
    each item that it wrote."""
    progress: list[int] = []
    write_store(
        destination,
        values or parameters(arrays()),
        replace(ORIGIN, **origin),
        side_files=destination.parent / "source",
        item_bytes=ITEM_BYTES,
        on_bytes=progress.append,
    )
    return progress


def leave_unfinished(destination: Path) -> Path:
    """Interrupts a run when it reads its last item; returns DST.partial."""

    def stop() -> NoReturn:
        raise KeyboardInterrupt

    *others, last = parameters(arrays())
    with pytest.raises(KeyboardInterrupt):
        write_small(destination, [*others, replace(last, read=stop)])
    return partial_directory(destination)


def source_directory(parent: Path) -> Path:
    """A directory with the files that are copied beside a store."""
    directory = parent / "source"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text("{}")
    (directory / "README.md").write_text("not copied")
    return directory
