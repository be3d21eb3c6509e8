"""Write models in the published form: config.json and model.safetensors."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from convert.files.safetensors_files import DTYPES, SINGLE_FILE, encode_header
from convert.fill import shapes_of
from convert.hub.files import PREPROCESSOR
from convert.models.config_json import draft_to_hf
from convert.models.eagle3 import draft_rules
from convert.models.targets import target_files
from convert.models.vision import preprocessor_to_hf, vision_rules, vision_to_hf
from convert.saved_tensors import ReadArray, host_reader, saved_tensors
from convert.store.parameter import Parameter
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.replace_file import replaced

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def save_hf(
    model: Target | Eagle3Draft,
    directory: str | Path,
    *,
    dtype: DTypeLike = jnp.bfloat16,
    shared_with: Target | None = None,
    vision: VisionModel | None = None,
) -> None:
    """Write a model in the published layout. `load_*` reads it back bit for bit.

    Weights are rounded to `dtype`; the router's correction bias stays float32. A draft's modules
    that belong to `shared_with` are left out. `vision` is the same target's, written for
    `load_vision`. Parameters are gathered from their devices one at a time. Each file is written
    atomically. Raises ValueError for quantised weights, which `save_store` can write.
    """
    directory, saved_dtype = Path(directory), np.dtype(dtype)
    if any(isinstance(part, QuantizedKernel) for _, part in nnx.iter_graph(model)):
        raise ValueError(
            "a model with quantised weights can't be saved: their floats are gone. Save the model "
            "it was made from, then run eagle3-quantize"
        )
    shapes = shapes_of(model, shared_modules(model, shared_with))
    tensors = model_tensors(model, shapes, saved_dtype)
    config = published_config(model, saved_dtype)
    directory.mkdir(parents=True, exist_ok=True)
    if vision is not None:
        read, shapes = host_reader(vision), shapes_of(vision)
        tensors += saved_tensors(vision_rules(), shapes, read, saved_dtype)
        config |= vision_to_hf(vision.config)
        _write_json(directory / PREPROCESSOR, preprocessor_to_hf(vision.config))
    write_tensors(directory / SINGLE_FILE, tensors)
    _write_json(directory / "config.json", config)


def published_config(model: Target | Eagle3Draft, dtype: np.dtype) -> dict[str, object]:
    """Return the content of config.json for a model."""
    if isinstance(model, Target):
        return target_files(model.config).to_hf(model.config, dtype.name)
    return draft_to_hf(model.config, dtype.name)


def write_tensors(path: Path, tensors: Iterable[Parameter]) -> None:
    """Write one safetensors file, widest dtypes first (aligned), reading one tensor at a time."""
    ordered = sorted(tensors, key=lambda tensor: -tensor.dtype.itemsize)
    header, _ = encode_header((t.path, _DTYPE_NAMES[t.dtype], t.shape) for t in ordered)
    chunks = (np.ascontiguousarray(tensor.read()).tobytes() for tensor in ordered)
    _replace(path, chain([header], chunks))


def model_tensors(
    model: Target | Eagle3Draft, shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype
) -> list[Parameter]:
    """Return the published tensors of the parameters in `shapes`, without gathering them yet."""
    read = host_reader(model)
    if isinstance(model, Target):
        files = target_files(model.config)
        tensors = saved_tensors(files.rules(model.config), shapes, read, dtype)
        return [replace(tensor, path=files.published_name(tensor.path)) for tensor in tensors]
    tensors = saved_tensors(draft_rules(model.config), shapes, read, dtype)
    vocab, draft_vocab = model.config.vocab_size, model.config.draft_vocab_size
    if draft_vocab < vocab:
        known = partial(_known_ids, read, vocab)
        tensors.append(Parameter("t2d", (vocab,), np.dtype(np.bool_), known))
    return tensors


def shared_modules(model: nnx.Module, shared_with: nnx.Module | None) -> set[str]:
    """Return the names of the draft's modules that are the same objects in another model."""
    names = ("embed_tokens", "lm_head")
    if shared_with is None:
        return set()
    return {name for name in names if getattr(model, name) is getattr(shared_with, name)}


def _known_ids(read: ReadArray, vocab_size: int) -> np.ndarray:
    offsets = read("d2t")
    known = np.zeros(vocab_size, np.bool_)
    known[np.arange(offsets.size) + offsets] = True
    return known


def _write_json(path: Path, content: object) -> None:
    _replace(path, [json.dumps(content, indent=2).encode() + b"\n"])


def _replace(path: Path, chunks: Iterable[bytes]) -> None:
    with replaced(path) as file:
        file.writelines(chunks)
