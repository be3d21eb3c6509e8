"""Quantised targets against transformers on the weights that their own tools dequantised."""

from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from cache_free import padded
from oracle_files import ORACLES, PROMPTS, golden_arrays, golden_json
from safetensors.torch import load_file
from sweeps import sweep
from tolerances import (
    ACTIVATION_SCHEMES_RMS,
    CLEAR_MARGIN,
    FED_BACK_ACTIVATIONS_RMS,
    FLOAT32_ATOL,
)
from torch.overrides import TorchFunctionMode

from convert import load_draft, load_target
from convert.abstract_model import Activations
from eagle3_jax import SamplingParams, generate
from eagle3_jax.full_pass import forward
from eagle3_jax.layers.moe import Experts, MoE
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.models.target import Target
from pallas_kernels import QuantFormat, QuantizedArray, dequantize

FP8 = "minimax_fp8block"
FORMS = ("kimi_int4_ct", "kimi_mxfp4_quark", "kimi_w4a8_quark", FP8)
LAST_ROWS = 6
load = cache(
    lambda form, activations: load_target(ORACLES / form, quantize_activations=activations)
)
each_prompt = pytest.mark.parametrize("prompt", PROMPTS)


def golden_logits(form: str, kind: str, prompt: int) -> tuple[np.ndarray, np.ndarray]:
    """The golden logits (row 0 and the last six) and the argmax of every row."""
    golden = golden_arrays(f"{form}_{kind}")
    return golden[f"p{prompt}.logits"], golden[f"p{prompt}.argmax"]


def logits_of(form: str, activations: Activations, prompt: int) -> np.ndarray:
    ids = golden_arrays(f"{form}_deq_f32")[f"p{prompt}.ids"]
    target: Target = load(form, activations)
    return np.asarray(forward(target, padded(ids)[None]).logits)[0, : len(ids)]


def experts_of(target: Target) -> Experts:
    moe = target.layers[1].mlp
    assert isinstance(moe, MoE)
    return moe.experts


def kept_rows(logits: np.ndarray) -> np.ndarray:
    return np.concatenate([logits[:1], logits[-LAST_ROWS:]])


@each_prompt
@pytest.mark.parametrize("form", FORMS)
def test_logits_are_those_of_the_dequantised_weights(form: str, prompt: int) -> None:
    golden, argmax = golden_logits(form, "deq_f32", prompt)
    logits = logits_of(form, False, prompt)
    np.testing.assert_allclose(kept_rows(logits), golden, rtol=0, atol=FLOAT32_ATOL)
    np.testing.assert_array_equal(logits.argmax(-1), argmax)


@each_prompt
def test_mxfp4_activations_are_quarks(prompt: int) -> None:
    golden, _ = golden_logits("kimi_mxfp4_quark", "actquant", prompt)
    logits = logits_of("kimi_mxfp4_quark", True, prompt)
    np.testing.assert_allclose(kept_rows(logits), golden, rtol=0, atol=FLOAT32_ATOL)


@each_prompt
@pytest.mark.parametrize("activations", sweep([True, "int8", "fp8"], ["int8", "fp8"]))
def test_w4a8_activations_lie_near_quarks(activations: Activations, prompt: int) -> None:
    """The golden file has one FP8 scale for all tokens of an expert, we have one a token."""
    golden, argmax = golden_logits("kimi_w4a8_quark", "actquant", prompt)
    logits = logits_of("kimi_w4a8_quark", activations, prompt)
    rms = np.sqrt(np.mean((kept_rows(logits) - golden) ** 2))
    assert FLOAT32_ATOL < rms < ACTIVATION_SCHEMES_RMS
    np.testing.assert_array_equal(logits.argmax(-1), argmax)


@pytest.mark.parametrize(("form", "ulps"), [("kimi_mxfp4_quark", 0), ("kimi_w4a8_quark", 1)])
def test_unpacked_weights_are_quarks(form: str, ulps: int) -> None:
    """Bit for bit, but that W4A8's two scales are multiplied before the values, not after."""
    golden = golden_arrays(f"{form}_dequantised_sample")
    experts = experts_of(load(form, True))
    for name, weight in golden.items():
        kernel = getattr(experts, name.split(".")[-2]).get_value()
        assert isinstance(kernel, QuantizedArray)
        unpacked = np.asarray(dequantize(kernel[1]), np.float32)
        np.testing.assert_array_max_ulp(unpacked, weight, maxulp=ulps or 1)
        assert ulps or np.array_equal(unpacked, weight)


def test_weights_stay_quantised_in_memory() -> None:
    experts = experts_of(load("kimi_int4_ct", True))
    assert isinstance(experts.up_proj, QuantizedKernel)
    values, scale = experts.up_proj.values.get_value(), experts.up_proj.scale.get_value()
    assert (values.dtype, values.shape) == (jnp.uint8, (6, 64, 64))
    assert (scale.dtype, scale.shape) == (jnp.bfloat16, (6, 64, 4))


def test_fp8_blocks_stay_quantised_and_the_router_is_float32() -> None:
    layer = load_target(ORACLES / FP8, dtype="bfloat16").layers[1]
    assert isinstance(layer.mlp, MoE)
    assert isinstance(layer.mlp.experts.up_proj, QuantizedKernel)
    assert layer.mlp.experts.up_proj.format == QuantFormat("fp8_block", "fp8_group")
    assert isinstance(layer.self_attn.o_proj.kernel, QuantizedKernel)
    assert layer.mlp.gate.kernel.get_value().dtype == np.float32


PAIRS = {
    "kimi_int4_ct": "draft_mha_fp8_ptpc",
    "kimi_mxfp4_quark": "draft_mha_int4_pc",
    "kimi_w4a8_quark": "draft_mla_bf16",
}


@pytest.mark.parametrize("form", sweep(PAIRS, ["kimi_w4a8_quark"]))
def test_speculative_output_is_the_golden_continuation(form: str) -> None:
    golden = golden_json(f"{form}_deq_f32")["prompts"]
    assert min(entry["min_margin"] for entry in golden) > CLEAR_MARGIN
    target = load_target(ORACLES / form, quantize_activations=False)
    draft = load_draft(ORACLES / PAIRS[form], target)
    greedy = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    prompts = [entry["prompt"] for entry in golden]
    answers = generate(target, draft, prompts, greedy, num_speculative_tokens=3)
    assert [answer.token_ids for answer in answers] == [entry["greedy"] for entry in golden]
    assert any(sum(answer.accepted) for answer in answers)


FLOAT_OUTPUTS = (4, 384)
"""Of the router and of the head, which stay as they are."""
BLOCK, FP8_MAX = 128, 448


class RoundedInputs(TorchFunctionMode):
    """Every linear layer but router and head multiplies float8, a scale for 128 values of a row."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear and args[1].shape[0] not in FLOAT_OUTPUTS:
            groups = args[0].unflatten(-1, (-1, BLOCK))
            scale = groups.abs().amax(-1, keepdim=True) / FP8_MAX
            rounded = (groups / scale).to(torch.float8_e4m3fn).float() * scale
            args = (rounded.flatten(-2), *args[1:])
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def dequantised() -> Any:
    """transformers' model on value times scale, float32."""
    weights = load_file(ORACLES / FP8 / "model.safetensors")
    for name in [name for name in weights if name.endswith("_scale_inv")]:
        scale = weights.pop(name).repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        matrix = name.removesuffix("_scale_inv")
        weights[matrix] = weights[matrix].float() * scale
    config: Any = transformers.AutoConfig.from_pretrained(ORACLES / FP8)
    del config.quantization_config
    # One call of `linear` an expert, so that its input can be rounded.
    options: dict[str, Any] = {"config": config, "experts_implementation": "eager"}
    of = transformers.MiniMaxM2ForCausalLM.from_pretrained
    return of(None, **options, state_dict=weights, dtype=torch.float32).eval()


def test_logits_are_transformers_with_inputs_rounded_alike(dequantised: Any) -> None:
    """The last bit of an input may decide to which side it rounds, which moves its row and those
    after it by a step of the format. Most rows have no such input."""
    apart: list[float] = []
    for prompt in PROMPTS:
        ids = golden_arrays(f"{FP8}_deq_f32")[f"p{prompt}.ids"]
        with torch.no_grad(), RoundedInputs():
            theirs = dequantised(torch.from_numpy(ids)[None].long()).logits[0].numpy()
        difference = logits_of(FP8, True, prompt) - theirs
        assert np.sqrt(np.mean(difference**2)) < FED_BACK_ACTIVATIONS_RMS
        apart += [*np.abs(difference).max(-1)]
    assert np.mean(np.array(apart) < FLOAT32_ATOL) > 0.5
