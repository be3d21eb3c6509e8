"""The draft, with grouped heads and widths unlike the golden ones, against a second writing."""

import json
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from oracle_files import ORACLES
from safetensors.torch import save_file
from sweeps import sweep
from tolerances import FLOAT32_ATOL
from torch_draft import Weights, draft_pass, features

from convert import load_draft
from convert.files.safetensors_files import read_json
from eagle3_jax.config import KimiConfig
from eagle3_jax.full_pass import draft_forward
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget

TARGET_HIDDEN, HIDDEN, INTER, VOCAB, DRAFT_VOCAB = 128, 24, 40, 576, 50
HEADS, KV_HEADS, HEAD_DIM = 6, 2, 10
OUTER = ("fc", "norm", "lm_head", "embed_tokens")
OPTIONS = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")
ROPES: dict[str, dict[str, Any]] = {
    "plain": {"rope_theta": 700.0},
    "yarn": {
        "rope_theta": 20.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 8.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    },
}


def frequencies(rope: str) -> torch.Tensor:
    """Frequencies of the five pairs of a head, written out.

    YaRN's ramp starts at pair 0 (8 turns in 32 positions would be pair -0.8) and ends at pair 3
    (1 turn is pair 2.7): pairs 1 and 2 lie between kept and divided by 16.
    """
    theta = ROPES[rope]["rope_theta"]
    plain = torch.tensor([theta ** (-2 * i / HEAD_DIM) for i in range(5)], dtype=torch.float64)
    if rope == "plain":
        return plain
    ramp = torch.tensor([0, 1 / 3, 2 / 3, 1, 1], dtype=torch.float64)
    return plain * (1 - ramp) + plain / 16 * ramp


def random_weights(options: Collection[str]) -> Weights:
    generator = torch.Generator().manual_seed(3)
    shapes = {
        "embed_tokens": (VOCAB, HIDDEN),
        "fc": (HIDDEN, 3 * TARGET_HIDDEN),
        "q_proj": (HEADS * HEAD_DIM, 2 * HIDDEN),
        "k_proj": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "v_proj": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "gate_proj": (INTER, HIDDEN),
        "up_proj": (INTER, HIDDEN),
        "down_proj": (HIDDEN, INTER),
        "lm_head": (DRAFT_VOCAB, HIDDEN),
    }
    norms: dict[str, int] = dict.fromkeys(
        ("input_layernorm", "hidden_norm", "post_attention_layernorm", "norm"), HIDDEN
    )
    if "norm_before_fc" in options:
        norms["input_norm"] = 3 * TARGET_HIDDEN
    if "fc_norm" in options:
        norms |= {f"fc_norm.{i}": TARGET_HIDDEN for i in range(3)}
    weights = {
        name: torch.randn(shape, generator=generator) * shape[1] ** -0.5
        for name, shape in shapes.items()
    }
    return weights | {
        name: 1 + 0.2 * torch.randn(size, generator=generator) for name, size in norms.items()
    }


def published_name(name: str) -> str:
    if name in OUTER or name.startswith(("input_norm", "fc_norm")):
        return f"{name}.weight"
    part = "self_attn." if name[0] in "qkvo" else "mlp." if name.endswith("_proj") else ""
    return f"layers.0.{part}{name}.weight"


def load(directory: Path, weights: Weights, rope: str, options: Collection[str]) -> Eagle3Draft:
    offsets = torch.arange(DRAFT_VOCAB) * 10
    tensors = {published_name(name): weight for name, weight in weights.items()}
    save_file({**tensors, "d2t": offsets}, directory / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "hidden_size": HIDDEN,
        "target_hidden_size": TARGET_HIDDEN,
        "intermediate_size": INTER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        **ROPES[rope],
        **dict.fromkeys(options, True),
    }
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    target_config = KimiConfig.from_hf(read_json(ORACLES / "kimi_bf16" / "config.json"))
    target = nnx.eval_shape(lambda: KimiTarget(target_config, rngs=nnx.Rngs(0)))
    return load_draft(directory, target, dtype="float32")


@pytest.mark.parametrize(
    ("rope", "options"),
    [
        *(("plain", ()), ("yarn", ()), ("plain", OPTIONS)),
        *sweep([("plain", (name,)) for name in OPTIONS], []),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value) or "eagle3",
)
def test_logits_and_states_are_those_of_the_second_writing(
    rope: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    """From known features, and from the recurrent states of that pass."""
    weights = random_weights(options)
    draft = load(tmp_path, weights, rope, options)
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(0, VOCAB, (40,), generator=generator)
    aux = torch.randn((40, 3 * TARGET_HIDDEN), generator=generator)
    wide = {name: weight.double() for name, weight in weights.items()}
    second = partial(
        draft_pass,
        wide,
        ids,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        inverse_frequencies=frequencies(rope),
        options=options,
        eps=1e-5,
    )
    expected = second(features(wide, aux.double(), options=options, eps=1e-5))
    tokens = jnp.asarray(ids.numpy(), jnp.int32)[None]
    got = draft_forward(draft, tokens, jnp.asarray(aux.numpy())[None])
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours[0], theirs.numpy(), rtol=0, atol=FLOAT32_ATOL)
    _, expected_next = second(expected[1])
    got_next, _ = nnx.jit(Eagle3Draft.__call__)(draft, tokens, got[1], jnp.arange(40)[None])
    np.testing.assert_allclose(got_next[0], expected_next.numpy(), rtol=0, atol=FLOAT32_ATOL)
    target_ids = draft.target_ids
    assert target_ids is not None
    np.testing.assert_array_equal(target_ids, np.arange(DRAFT_VOCAB) * 11)
