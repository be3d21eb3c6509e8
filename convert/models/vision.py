"""Table of the published tensors of Kimi-K2.5's vision tower and projector."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from convert.models.rules import Layout, Rule, Transposed, WhenQuantized
from eagle3_jax.config.vision import PUBLISHED_AS, VISION_KINDS, VisionConfig

PARTS = ("vision_tower", "mm_projector")
"""First components of the names of both tensors and parameters."""
_FLOATS_FOR_ALL = Transposed("dequantize")
_BLOCK = "vision_tower.encoder.blocks.{layer}."
_NORMS = (
    *(_BLOCK + "norm0", _BLOCK + "norm1"),
    *("vision_tower.encoder.final_layernorm", "mm_projector.pre_norm"),
)
_LINEARS = (
    *(_BLOCK + name for name in ("wo", "mlp.fc0", "mlp.fc1")),
    "mm_projector.proj.{step}",
)
_EMBEDDING = "vision_tower.patch_embed."


@dataclass(frozen=True)
class JointRows(Layout):
    """Layout of `wqkv`, rows of queries, keys, values: [3 out, in] <-> [in, 3, out]."""

    quantized: WhenQuantized = "dequantize"
    row_axis: int | None = None
    read_whole: bool = True

    def load(self, tensor: np.ndarray) -> tuple[np.ndarray, ...]:
        three = tensor.reshape(3, -1, *tensor.shape[1:])
        return (np.moveaxis(three, 2, 0) if three.ndim == 3 else three,)

    def save(self, *parts: np.ndarray) -> np.ndarray:
        three = np.moveaxis(parts[0], 0, 2) if parts[0].ndim == 3 else parts[0]
        return three.reshape(-1, *three.shape[2:])

    def tensor_shape(self, *parts: tuple[int, ...]) -> tuple[int, ...]:
        *inputs, three, outputs = parts[0]
        return (three * outputs, *inputs)


def vision_rules() -> list[Rule]:
    """Return the table; weights that eagle3-quantize --vision quantised become floats again."""
    names = [_EMBEDDING + name for name in ("proj.weight", "proj.bias", "pos_emb.weight")]
    names += [f"{name}.{part}" for name in _NORMS for part in ("weight", "bias")]
    names += [f"{name}.bias" for name in _LINEARS]
    kernels = [Rule(f"{n}.weight", (f"{n}.kernel",), _FLOATS_FOR_ALL) for n in _LINEARS]
    heads = {"wqkv.weight": "wqkv.kernel", "wqkv.bias": "wqkv.bias"}
    joint = [Rule(_BLOCK + name, (_BLOCK + path,), JointRows()) for name, path in heads.items()]
    return [*(Rule(name, (name,)) for name in names), *kernels, *joint]


def vision_to_hf(config: VisionConfig) -> dict[str, Any]:
    """Return the vision fields of config.json, under the released names."""
    names = {**PUBLISHED_AS, **{name: name for name in ("patch_size", "text_hidden_size")}}
    return {
        "media_placeholder_token_id": config.media_placeholder_token_id,
        "vision_config": {
            **{published: getattr(config, name) for name, published in names.items()},
            "merge_kernel_size": [config.merge_size] * 2,
            "mm_hidden_size": config.hidden_size,
            "projector_ln_eps": config.projector_ln_eps,
            **{name: values[0] for name, values in VISION_KINDS.items()},
        },
    }


def preprocessor_to_hf(config: VisionConfig) -> dict[str, Any]:
    """Return the content of preprocessor_config.json."""
    sizes = {"patch_size": config.patch_size, "merge_kernel_size": config.merge_size}
    return {"media_proc_cfg": {**asdict(config.pixels), **sizes, "fixed_output_tokens": None}}
