"""Inputs and results of another trainer, and our draft and teacher with its weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import safe_open
from tiny_pair import tiny_target

from convert.models.eagle3 import canonical_draft_name
from eagle3_jax.config import DraftConfig, RopeConfig
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.training.distillation import TargetHead

GOLDENS = Path(__file__).parent / "goldens"


@dataclass(frozen=True)
class Golden:
    """Arrays by name, and what they are of: a shape, a variant, steps and their decay."""

    arrays: Mapping[str, np.ndarray]
    described: Mapping[str, Any]

    @classmethod
    def read(cls, variant: str) -> "Golden":
        with safe_open(GOLDENS / f"speculators_{variant}.safetensors", "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}
            return cls(arrays, json.loads(file.metadata()["described"]))

    def under(self, prefix: str) -> dict[str, np.ndarray]:
        found = {k: v for k, v in self.arrays.items() if k.startswith(f"{prefix}.")}
        return {name.removeprefix(f"{prefix}."): array for name, array in found.items()}


def module_and_name(model: Any, name: str) -> tuple[nnx.Variable[Any], bool]:
    """Our parameter of a published name, and whether it is kept transposed."""
    *path, _ = canonical_draft_name(name).split(".")
    for part in path:
        model = model[int(part)] if part.isdigit() else getattr(model, part)
    for kind in ("kernel", "embedding", "weight", "scale"):
        if isinstance(found := getattr(model, kind, None), nnx.Variable):
            return found, kind == "kernel"
    raise AssertionError(name)


def the_draft(golden: Golden) -> Eagle3Draft:
    shape = golden.described["shape"]
    config = DraftConfig(
        **shape,
        draft_vocab_size=shape["vocab_size"],
        target_hidden_size=shape["hidden_size"],
        rms_norm_eps=1e-6,
        max_position_embeddings=4096,
        rope=RopeConfig(10000.0),
        aux_layer_ids=(0, 1, 2),
        **golden.described["variant"],
    )
    draft = Eagle3Draft(config, rngs=nnx.Rngs(0))
    for name, weight in golden.under("weight").items():
        if not name.startswith("verifier"):
            parameter, transposed = module_and_name(draft, name)
            parameter.set_value(jnp.asarray(weight.T if transposed else weight))
    return draft


def the_teacher(golden: Golden) -> TargetHead:
    target_head = TargetHead(tiny_target())
    norm, _ = module_and_name(target_head, "norm.weight")
    head, _ = module_and_name(target_head, "lm_head.weight")
    norm.set_value(jnp.asarray(golden.arrays["weight.verifier_norm.weight"]))
    head.set_value(jnp.asarray(golden.arrays["weight.verifier_lm_head.weight"].T))
    target_head.norm.eps = 1e-6
    return target_head
