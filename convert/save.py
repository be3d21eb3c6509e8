"""Write models in the published form, or as converted checkpoints."""

import json
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from convert.files.safetensors_files import DTYPES, SINGLE_FILE, TensorType, writing_tensors
from convert.fill import named_variables, shapes_of
from convert.hub.files import PREPROCESSOR
from convert.models.config_json import draft_to_hf
from convert.models.eagle3 import draft_rules
from convert.models.rules import Layout, Rule, filled, split_row
from convert.models.targets import target_files
from convert.models.vision import preprocessor_to_hf, vision_rules, vision_to_hf
from convert.store.manifest import Origin
from convert.store.parameters import Parameter
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.replace_file import replaced
from pallas_kernels import QuantFormat

ReadArray = Callable[[str], np.ndarray]
KEPT = 2
"""Parameters kept in host memory: some tensors are made from two."""
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
    from convert.store.writer import write_store  # Orbax takes a second to import.

    read, shared = host_reader(model), shared_modules(model, shared_with)
    parameters = []
    for path, variable in named_variables(model, shared).items():
        value = variable.get_value()
        dtype = np.dtype(value.dtype)
        parameters.append(Parameter(path, value.shape, dtype, partial(read, path)))
    with tempfile.TemporaryDirectory() as side_files:
        config = published_config(model, np.dtype(model.embed_tokens.embedding.get_value().dtype))
        _write_json(Path(side_files, "config.json"), config)
        origin = _origin(model, shared)
        write_store(Path(directory), parameters, origin, side_files=Path(side_files))


def published_config(model: Target | Eagle3Draft, dtype: np.dtype) -> dict[str, object]:
    """Return the content of config.json for a model."""
    if isinstance(model, Target):
        return target_files(model.config).to_hf(model.config, dtype.name)
    return draft_to_hf(model.config, dtype.name)


def write_tensors(path: Path, tensors: Iterable[Parameter]) -> None:
    """Write one safetensors file, reading one tensor at a time."""
    named = {tensor.path: tensor for tensor in tensors}
    types = {name: TensorType(_DTYPE_NAMES[t.dtype], t.shape) for name, t in named.items()}
    with replaced(path) as file, writing_tensors(file, types) as append:
        for name, tensor in named.items():
            append(name, np.ascontiguousarray(tensor.read()).tobytes())


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


def saved_tensors(
    rules: Sequence[Rule], shapes: Mapping[str, tuple[int, ...]], read: ReadArray, dtype: np.dtype
) -> list[Parameter]:
    """List the tensors of all parameters under their published names.

    `shapes` is by path. `read` returns one parameter by path. `dtype` is used if a rule states
    none.
    """
    tensors: list[Parameter] = []
    written: set[str] = set()
    for rule, path, values in filled(rules, shapes):
        stacked, _ = split_row(rule.paths[0])
        paths = [split_row(part)[1].format(**values) for part in rule.paths]
        written.update(paths)
        saved = DTYPES[rule.saved] if rule.saved else dtype
        shape = rule.layout.tensor_shape(*(shapes[p][1:] if stacked else shapes[p] for p in paths))
        for row in range(shapes[path][0]) if stacked else (None,):
            name = rule.name.format(**values, **({stacked: row} if stacked else {}))
            arranged = partial(_arranged, rule.layout, paths, row, read, saved)
            tensors.append(Parameter(name, shape, saved, arranged))
    assert written == set(shapes), f"no rule saves {sorted(set(shapes) - written)}"
    return tensors


def host_reader(model: nnx.Module) -> ReadArray:
    """Return a function that copies a parameter of this process's devices to host memory.

    It caches KEPT copies. It raises ValueError if other processes hold parts of the parameter.
    """
    variables = named_variables(model)
    return lru_cache(KEPT)(lambda path: _to_host(variables[path].get_value()))


def _arranged(
    layout: Layout, paths: Sequence[str], row: int | None, read: ReadArray, dtype: np.dtype
) -> np.ndarray:
    arrays = (read(path) if row is None else read(path)[row] for path in paths)
    return np.ascontiguousarray(layout.save(*arrays), dtype)


def _to_host(array: jax.Array) -> np.ndarray:
    """Copy an array to the host, via copies of its shards: JAX caches the host copy of an array."""
    if not array.is_fully_addressable:
        raise ValueError(
            "a model that lies on several processes can't be saved: load it in one process, or "
            "convert its checkpoint with eagle3-convert"
        )
    out = np.empty(array.shape, array.dtype)
    for part in array.addressable_shards:
        if part.replica_id == 0:
            out[part.index] = np.asarray(jax.device_put(part.data, part.device, may_alias=False))
    return out


def _known_ids(read: ReadArray, vocab_size: int) -> np.ndarray:
    offsets = read("d2t")
    known = np.zeros(vocab_size, np.bool_)
    known[np.arange(offsets.size) + offsets] = True
    return known


def _write_json(path: Path, content: object) -> None:
    with replaced(path) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")


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
