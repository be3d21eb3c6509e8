"""A Kimi pair small enough to emulate, with real head sizes, and its requests.

Its random weights have a structure (`pair_weights`) that gives every choice a clear margin.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from convert.quantize.schemes import encode_fp8_channels, encode_mxfp4
from eagle3_jax.config import DraftConfig, KimiConfig, RopeConfig, YarnConfig
from eagle3_jax.engine import EngineConfig, Request
from eagle3_jax.layers.quantized import QuantizedKernel, quantize_structure
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.sampling.params import SamplingParams
from eagle3_tools.amdgpu.rounds.pair_weights import draw_codes, structured_draft, structured_target
from pallas_kernels import QuantFormat

TARGET = KimiConfig(
    vocab_size=512,
    hidden_size=256,
    intermediate_size=256,
    moe_intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    n_routed_experts=8,
    n_shared_experts=1,
    num_experts_per_tok=2,
    first_k_dense_replace=1,
    routed_scaling_factor=2.5,
    norm_topk_prob=True,
    q_lora_rank=128,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    rms_norm_eps=1e-5,
    max_position_embeddings=4096,
    rope=RopeConfig(10000.0, YarnConfig(4.0, 64, mscale=1.0, mscale_all_dim=1.0)),
)
"""One dense and one MoE layer; half as many heads as one of eight GPUs has for Kimi-K2.5."""
DRAFT = DraftConfig(
    vocab_size=512,
    draft_vocab_size=512,
    hidden_size=256,
    target_hidden_size=256,
    intermediate_size=256,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=128,
    rms_norm_eps=1e-6,
    max_position_embeddings=4096,
    rope=RopeConfig(10000.0),
    aux_layer_ids=(0, 1, 2),
)
ENGINE = EngineConfig(
    num_speculative_tokens=3,
    max_model_len=96,
    max_num_seqs=4,
    page_size=16,
    prefill_chunk=16,
    batch_buckets=(4,),
    enable_structured_outputs=False,
)
FORMATS = ("bf16", "mxfp4")
SEED = 2
"""With this seed three rounds accept 0, 1, 2 and 3 drafts, and no choice is a near tie."""
PROMPTS, TEMPERATURES = (5, 21, 12), (0.0, 0.0, 1.0)
"""Prompt lengths, one longer than a chunk. One slot stays empty: its row is padding."""
_MLP = ("gate_proj", "up_proj", "down_proj")
_FEED_FORWARD = ("layers.0.mlp.{}.kernel", "layers.1.mlp.shared_experts.{}.kernel")
_MXFP4_PATHS = [
    path.format(name) for path in (*_FEED_FORWARD, "layers.1.mlp.experts.{}") for name in _MLP
]
_FP8_PATHS = [
    *(f"midlayer.self_attn.{name}_proj.kernel" for name in "qkvo"),
    *(f"midlayer.mlp.{name}.kernel" for name in _MLP),
]
Encode = Callable[[np.ndarray], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class SmallPair:
    """Models in bfloat16, except for quantised matrices."""

    target: KimiTarget
    draft: Eagle3Draft


def small_pair(format: str = "bf16") -> SmallPair:
    """Make the pair in one of FORMATS; raise ValueError for another.

    In `mxfp4` target feed-forwards and rows are MXFP4, the draft's layer FP8 by token and channel.
    """
    if format not in FORMATS:
        raise ValueError(f"expected one of {', '.join(FORMATS)}; got {format!r}")
    rng = np.random.default_rng(SEED)
    codes = draw_codes(rng, TARGET)
    target = structured_target(codes, rng, TARGET)
    draft = structured_draft(target, codes, rng, DRAFT)
    if format == "mxfp4":
        _quantize(target, _MXFP4_PATHS, QuantFormat("mxfp4", "mxfp4"), encode_mxfp4)
        _quantize(draft, _FP8_PATHS, QuantFormat("fp8_channel", "fp8_token"), encode_fp8_channels)
    return SmallPair(target, draft)


def requests(rounds: int) -> list[Request]:
    """Return two greedy requests and a sampled one, longer than `rounds` rounds can answer."""
    rng = np.random.default_rng(0)
    most = ENGINE.width * (rounds + 1) + 1
    return [
        Request(
            f"{i}",
            rng.integers(0, TARGET.vocab_size, length).tolist(),
            SamplingParams(temperature=temperature, seed=i, max_tokens=most, ignore_eos=True),
        )
        for i, (length, temperature) in enumerate(zip(PROMPTS, TEMPERATURES, strict=True))
    ]


def _quantize(model: nnx.Module, paths: Sequence[str], format: QuantFormat, encode: Encode) -> None:
    """Replace each of these parameters by a quantised kernel."""
    structure = nnx.eval_shape(lambda: nnx.clone(model))
    quantize_structure(structure, dict.fromkeys(paths, format))
    for path in paths:
        parent, name = _owner(model, path)
        kernel: QuantizedKernel = getattr(_owner(structure, path)[0], name)
        plain = np.asarray(getattr(parent, name).get_value()).swapaxes(-1, -2)
        encoded = encode(plain.reshape(-1, plain.shape[-1]))
        for part, stored in ((kernel.values, "weight"), (kernel.scale, "weight_scale")):
            part.set_value(jnp.asarray(encoded[stored]).reshape(part.get_value().shape))
        setattr(parent, name, kernel)


def _owner(model: Any, path: str) -> tuple[Any, str]:
    """Return the module that has the parameter, and its name there."""
    *parents, name = path.split(".")
    for part in parents:
        model = model[int(part)] if part.isdigit() else getattr(model, part)
    return model, name
