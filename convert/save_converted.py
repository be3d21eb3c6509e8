"""Write models as converted checkpoints, from any devices for any devices."""

import json
import tempfile
from collections.abc import Collection
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from flax import nnx

from convert.fill import named_variables, shapes_of
from convert.save import model_tensors, published_config, shared_modules
from convert.saved_tensors import host_reader
from convert.store.manifest import Origin
from convert.store.parameter import Parameter
from convert.store.writer import write_store
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from pallas_kernels import QuantFormat


def save_store(
    model: Target | Eagle3Draft,
    directory: str | Path,
    *,
    shared_with: Target | None = None,
) -> None:
    """Write a model, quantised or not. `load_*` restores it bit for bit onto any mesh.

    The tokenizer and a draft's modules that belong to `shared_with` are left out. Parameters are
    gathered from this process's devices one at a time. Raises ValueError if the directory exists.
    """
    read, shared = host_reader(model), shared_modules(model, shared_with)
    parameters = []
    for path, variable in named_variables(model, shared).items():
        value = variable.get_value()
        dtype = np.dtype(value.dtype)
        parameters.append(Parameter(path, value.shape, dtype, partial(read, path)))
    with tempfile.TemporaryDirectory() as side_files:
        config = published_config(model, np.dtype(model.embed_tokens.embedding.get_value().dtype))
        Path(side_files, "config.json").write_text(json.dumps(config, indent=2) + "\n")
        origin = _origin(model, shared)
        write_store(Path(directory), parameters, origin, side_files=Path(side_files))


def _origin(model: Target | Eagle3Draft, shared: Collection[str]) -> Origin:
    """Describe a model in memory as an origin: formats and tensors, but no source files."""
    formats: dict[str, QuantFormat] = {}
    shapes = shapes_of(model, shared)
    for parts, module in nnx.iter_modules(model):
        if isinstance(module, QuantizedKernel) and str(parts[0]) not in shared:
            path = ".".join(map(str, parts))
            del shapes[f"{path}.values"], shapes[f"{path}.scale"]
            shapes[path], formats[path] = module.get_value().shape, module.format
    tensors = model_tensors(model, shapes, np.dtype(np.float32))
    return Origin(
        source=(),
        arch="gfx950",
        options={"int4_order": "auto", "assumed": []},
        formats={path: asdict(format) for path, format in formats.items()},
        tensors={tensor.path: tensor.shape for tensor in tensors},
    )
