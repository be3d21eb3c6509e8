"""Write models in the published form: config.json and model.safetensors."""

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from convert.eagle3 import draft_rules
from convert.fill import named_variables
from convert.kimi_k25 import published_target_name, target_rules
from convert.published_config import draft_to_hf, target_to_hf
from convert.rules import saved_tensors
from convert.safetensors_files import DTYPES, SINGLE_FILE
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def save_hf(
    model: KimiTarget | Eagle3Draft,
    directory: str | Path,
    *,
    dtype: DTypeLike = jnp.bfloat16,
    shared_with: KimiTarget | None = None,
) -> None:
    """Writes a model as published checkpoints are laid out; what `load_*` reads back bit for bit.

    Weights are rounded to `dtype`, the router's correction bias stays float32. A draft's modules
    that are those of `shared_with` are left out. Each file appears complete or not at all. Raises
    ValueError for a model with quantised weights.
    """
    directory, saved_dtype = Path(directory), np.dtype(dtype)
    if any(isinstance(part, QuantizedKernel) for _, part in nnx.iter_graph(model)):
        raise ValueError(
            "a model with quantised weights can't be saved: their floats are gone. Save the model "
            "it was made from, then run eagle3-quantize"
        )
    if isinstance(model, KimiTarget):
        config = target_to_hf(model.config, saved_dtype.name)
        tensors = _target_tensors(model, saved_dtype)
    else:
        config = draft_to_hf(model.config, saved_dtype.name)
        tensors = _draft_tensors(model, saved_dtype, shared_with)
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / SINGLE_FILE, tensors)
    _replace(directory / "config.json", json.dumps(config, indent=2).encode() + b"\n")


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes one safetensors file, widest types first so that every tensor is aligned."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    chunks = (np.ascontiguousarray(tensor).tobytes() for _, tensor in ordered)
    _replace(path, struct.pack("<Q", len(encoded)), encoded, *chunks)


def _target_tensors(model: KimiTarget, dtype: np.dtype) -> dict[str, np.ndarray]:
    tensors = saved_tensors(target_rules(model.config), _arrays(model), dtype)
    return {published_target_name(name): tensor for name, tensor in tensors.items()}


def _draft_tensors(
    model: Eagle3Draft, dtype: np.dtype, shared_with: KimiTarget | None
) -> dict[str, np.ndarray]:
    shared = {
        name
        for name in ("embed_tokens", "lm_head")
        if shared_with is not None and getattr(model, name) is getattr(shared_with, name)
    }
    own = {name: a for name, a in _arrays(model).items() if name.split(".")[0] not in shared}
    tensors = saved_tensors(draft_rules(model.config), own, dtype)
    if (target_ids := model.target_ids) is not None:
        known = np.zeros(model.config.vocab_size, np.bool_)
        known[np.asarray(target_ids)] = True
        tensors["t2d"] = known
    return tensors


def _arrays(model: KimiTarget | Eagle3Draft) -> dict[str, np.ndarray]:
    return {name: np.asarray(v.get_value()) for name, v in named_variables(model).items()}


def _replace(path: Path, *chunks: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.writelines(chunks)
    os.replace(temporary, path)
