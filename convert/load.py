"""Load published checkpoints into Flax models."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from convert.eagle3 import canonical_draft_name, draft_rules
from convert.fill import fill
from convert.kimi_k25 import canonical_target_name, target_rules
from convert.pairing import HeadChoice, Pair
from convert.quantized import refuse_quantized
from convert.safetensors_files import open_checkpoint, read_json
from eagle3_jax.config import AuxIdConvention, DraftConfig, TargetConfig
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget

Config = TypeVar("Config")


def load_target(
    path: str | Path,
    *,
    dtype: DTypeLike | None = None,
    mesh: jax.sharding.Mesh | None = None,
    quantize_activations: bool = True,
) -> KimiTarget:
    """Loads a Kimi-K2.5 (or bare DeepSeek-V3) checkpoint directory.

    Weights are cast to `dtype`: by default float32 on CPU, bfloat16 elsewhere. Raises
    FileNotFoundError for missing files and ValueError for anything that does not fit; sharding
    (`mesh`) and quantised checkpoints are refused so far.
    """
    _refuse_unbuilt(mesh=(mesh, None), quantize_activations=(quantize_activations, True))
    directory, run_dtype = Path(path), _run_dtype(dtype)
    config = _read_config(directory, TargetConfig.from_hf)
    checkpoint = open_checkpoint(directory)
    refuse_quantized(checkpoint)
    model = nnx.eval_shape(lambda: KimiTarget(config, rngs=nnx.Rngs(0), dtype=run_dtype))
    fill(model, checkpoint, target_rules(config), canonical_target_name)
    return model


def load_draft(
    path: str | Path,
    target: KimiTarget,
    *,
    dtype: DTypeLike | None = None,
    mesh: jax.sharding.Mesh | None = None,
    quantize_activations: bool = True,
    aux_id_convention: AuxIdConvention = "auto",
    lm_head: HeadChoice = "auto",
    int4_order: Literal["auto", "linear", "awq"] = "auto",
    rope_theta: float | None = None,
) -> Eagle3Draft:
    """Loads an EAGLE-3 draft for `target`, which stays as it is.

    An embedding or head that the file lacks is the target's own module; `lm_head` "own" or
    "target" decides the head instead. `rope_theta` overrides config.json. Raises as `load_target`
    does, and ValueError when the draft was made for another target.
    """
    _refuse_unbuilt(
        mesh=(mesh, None),
        quantize_activations=(quantize_activations, True),
        int4_order=(int4_order, "auto"),
    )
    directory, run_dtype = Path(path), _run_dtype(dtype)

    def parse(published: Mapping[str, Any]) -> DraftConfig:
        layers = target.config.num_hidden_layers
        return DraftConfig.from_hf(
            published, num_target_layers=layers, aux_id_convention=aux_id_convention
        )

    config = _read_config(directory, parse)
    if rope_theta is not None:
        config = replace(config, rope=replace(config.rope, theta=float(rope_theta)))
    checkpoint = open_checkpoint(directory)
    refuse_quantized(checkpoint)
    pair = Pair(checkpoint, config, target.config)
    pair.check_dimensions()
    shared = pair.shared_modules(lm_head)
    draft = nnx.eval_shape(lambda: Eagle3Draft(config, rngs=nnx.Rngs(0), dtype=run_dtype))
    rules = draft_rules(config, own_lm_head="lm_head" not in shared)
    fill(draft, checkpoint, rules, canonical_draft_name, skip=shared)
    for name in shared:
        setattr(draft, name, getattr(target, name))
    pair.check_target_ids()
    return draft


def _run_dtype(dtype: DTypeLike | None) -> np.dtype:
    default = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    chosen = np.dtype(default if dtype is None else dtype)
    if not jnp.issubdtype(chosen, jnp.floating):
        raise ValueError(f"dtype must be a floating type such as bfloat16, got {chosen}")
    return chosen


def _refuse_unbuilt(**options: tuple[Any, Any]) -> None:
    for name, (value, default) in options.items():
        if value != default:
            raise ValueError(f"{name}={value!r} is not supported yet; leave it at {default!r}")


def _read_config(directory: Path, parse: Callable[[Mapping[str, Any]], Config]) -> Config:
    if not directory.is_dir():
        raise FileNotFoundError(f"checkpoint directory {directory} does not exist")
    published = read_json(directory / "config.json")
    try:
        return parse(published)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{directory / 'config.json'}: {error}") from error
