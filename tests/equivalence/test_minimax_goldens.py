"""MiniMax-M2 and its draft against what transformers, its FP8 and EAGLE's own loop computed."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from cache_free import draft_chain, padded
from engine_rounds import LONG_CHAINS, SHORT_CHAINS, Chains, check_engine
from oracle_files import ORACLES, PROMPTS, golden_arrays
from safetensors.torch import load_file
from sweeps import sweep
from tolerances import FED_BACK_ACTIVATIONS_RMS, FLOAT32_ATOL
from torch.overrides import TorchFunctionMode

from convert import load_draft, load_target
from eagle3_jax.full_pass import draft_forward, forward
from eagle3_jax.layers.moe import MoE
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from pallas_kernels import QuantFormat

TARGET, DRAFT = golden_arrays("minimax_bf16_f32"), golden_arrays("draft_minimax_bf16")
FP8_TARGET, FP8_GOLDEN = ORACLES / "minimax_fp8block", "minimax_fp8block_deq_f32"
LAST_ROWS = 6
each_prompt = pytest.mark.parametrize("prompt", PROMPTS)


@pytest.fixture(scope="module")
def minimax() -> Target:
    return load_target(ORACLES / "minimax_bf16")


@pytest.fixture(scope="module")
def minimax_draft(minimax: Target) -> Eagle3Draft:
    return load_draft(ORACLES / "draft_minimax_bf16", minimax)


@each_prompt
def test_logits_and_streams_of_minimax_are_transformers(minimax: Target, prompt: int) -> None:
    golden = {k.removeprefix(f"p{prompt}."): v for k, v in TARGET.items() if f"p{prompt}." in k}
    layers = minimax.config.num_hidden_layers
    out = forward(minimax, padded(golden["ids"])[None], aux_layer_ids=range(layers + 1))
    rows = len(golden["logits"])
    logits = np.asarray(out.logits)[0, :rows]
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=FLOAT32_ATOL)
    np.testing.assert_array_equal(logits.argmax(-1), golden["argmax"])
    streams = np.split(np.asarray(out.aux_hidden[0]), layers + 1, axis=-1)
    for k, stream in enumerate(streams[:-1]):
        ours = stream[: len(golden[f"hidden.{k}"])]
        np.testing.assert_allclose(ours, golden[f"hidden.{k}"], rtol=0, atol=FLOAT32_ATOL)


def test_fp8_blocks_give_the_logits_of_their_dequantised_weights() -> None:
    golden = golden_arrays(FP8_GOLDEN)
    target = load_target(FP8_TARGET, quantize_activations=False)
    for prompt in PROMPTS:
        logits = logits_of(target, golden[f"p{prompt}.ids"])
        kept = np.concatenate([logits[:1], logits[-LAST_ROWS:]])
        np.testing.assert_allclose(kept, golden[f"p{prompt}.logits"], rtol=0, atol=FLOAT32_ATOL)
        np.testing.assert_array_equal(logits.argmax(-1), golden[f"p{prompt}.argmax"])


def test_fp8_blocks_stay_quantised_and_the_router_is_float32() -> None:
    layer = load_target(FP8_TARGET, dtype="bfloat16").layers[1]
    assert isinstance(layer.mlp, MoE)
    assert isinstance(layer.mlp.experts.up_proj, QuantizedKernel)
    assert layer.mlp.experts.up_proj.format == QuantFormat("fp8_block", "fp8_group")
    assert isinstance(layer.self_attn.o_proj.kernel, QuantizedKernel)
    assert layer.mlp.gate.kernel.get_value().dtype == np.float32


@each_prompt
def test_states_and_chains_of_its_draft_are_the_trainers(
    minimax_draft: Eagle3Draft, prompt: int
) -> None:
    golden = {k.removeprefix(f"p{prompt}."): v for k, v in DRAFT.items() if f"p{prompt}." in k}
    ids, aux = golden["ids"][1:], golden["aux"]
    logits, hidden = draft_forward(minimax_draft, padded(ids)[None], padded(aux)[None])
    for ours, key in ((hidden, "hidden"), (logits, "logits")):
        last_rows = np.asarray(ours)[0, len(ids) - len(golden[key]) : len(ids)]
        np.testing.assert_allclose(last_rows, golden[key], rtol=0, atol=FLOAT32_ATOL)
    chain = draft_chain(minimax_draft, ids, aux, steps=6)
    assert chain.tokens == golden["chain_tokens"].tolist()
    np.testing.assert_allclose(chain.logits, golden["chain_logits"], rtol=0, atol=FLOAT32_ATOL)


@pytest.mark.parametrize(("chains",), sweep([(SHORT_CHAINS,), (LONG_CHAINS,)], [(SHORT_CHAINS,)]))
def test_the_engines_rounds_of_minimax_are_eagles(
    minimax: Target, minimax_draft: Eagle3Draft, chains: Chains, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_engine(minimax, minimax_draft, "draft_minimax_bf16", chains, monkeypatch)


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
    weights = load_file(FP8_TARGET / "model.safetensors")
    for name in [name for name in weights if name.endswith("_scale_inv")]:
        scale = weights.pop(name).repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        matrix = name.removesuffix("_scale_inv")
        weights[matrix] = weights[matrix].float() * scale
    config: Any = transformers.AutoConfig.from_pretrained(FP8_TARGET)
    del config.quantization_config
    # One call of `linear` an expert, so that its input can be rounded.
    options: dict[str, Any] = {"config": config, "experts_implementation": "eager"}
    of = transformers.MiniMaxM2ForCausalLM.from_pretrained
    return of(None, **options, state_dict=weights, dtype=torch.float32).eval()


def logits_of(target: Target, ids: np.ndarray) -> np.ndarray:
    return np.asarray(forward(target, padded(ids)[None]).logits)[0, : len(ids)]


def test_logits_are_transformers_with_inputs_rounded_alike(dequantised: Any) -> None:
    """The last bit of an input may decide to which side it rounds, which moves its row and those
    after it by a step of the format. Most rows have no such input."""
    published, apart = load_target(FP8_TARGET), []
    for prompt in PROMPTS:
        ids = golden_arrays(FP8_GOLDEN)[f"p{prompt}.ids"]
        with torch.no_grad(), RoundedInputs():
            theirs = dequantised(torch.from_numpy(ids)[None].long()).logits[0].numpy()
        difference = logits_of(published, ids) - theirs
        assert np.sqrt(np.mean(difference**2)) < FED_BACK_ACTIVATIONS_RMS
        apart += [*np.abs(difference).max(-1)]
    assert np.mean(np.array(apart) < FLOAT32_ATOL) > 0.5
