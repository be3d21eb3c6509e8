"""MiniMax-M2 as it is published: FP8 blocks that multiply activations rounded to FP8 too.

transformers computes on the dequantised weights; what its linear layers multiply is rounded here,
by torch's own float8.
"""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from cache_free import padded
from oracle_files import ORACLES, PROMPTS, golden_arrays, golden_json
from safetensors.torch import load_file
from tolerances import ACTIVATION_SCHEMES_RMS, FED_BACK_ACTIVATIONS_RMS, FLOAT32_ATOL
from torch.overrides import TorchFunctionMode

from convert import load_draft, load_target
from eagle3_jax import SamplingParams, generate
from eagle3_jax.full_pass import forward
from eagle3_jax.models.target import Target

PUBLISHED = ORACLES / "minimax_fp8block"
GOLDEN = "minimax_fp8block_deq_f32"
FLOAT_OUTPUTS = (4, 384)
"""Of the router and of the head, which stay as they are."""
BLOCK, FP8_MAX = 128, 448
LAST_ROWS = 6


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
def published() -> Target:
    return load_target(PUBLISHED)


@pytest.fixture(scope="module")
def dequantised() -> Any:
    """transformers' model on value times scale, float32."""
    weights = load_file(PUBLISHED / "model.safetensors")
    for name in [name for name in weights if name.endswith("_scale_inv")]:
        scale = weights.pop(name).repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        matrix = name.removesuffix("_scale_inv")
        weights[matrix] = weights[matrix].float() * scale
    config: Any = transformers.AutoConfig.from_pretrained(PUBLISHED)
    del config.quantization_config
    # One call of `linear` an expert, so that its input can be rounded.
    options: dict[str, Any] = {"config": config, "experts_implementation": "eager"}
    of = transformers.MiniMaxM2ForCausalLM.from_pretrained
    return of(None, **options, state_dict=weights, dtype=torch.float32).eval()


def logits_of(target: Target, ids: np.ndarray) -> np.ndarray:
    return np.asarray(forward(target, padded(ids)[None]).logits)[0, : len(ids)]


def rms(difference: np.ndarray) -> float:
    return float(np.sqrt(np.mean(difference**2)))


def test_logits_are_transformers_with_inputs_rounded_alike(
    published: Target, dequantised: Any
) -> None:
    """But where the last bit of an input decides to which side it rounds: it moves its row, and
    those behind, by a step of the format. Most rows have no such input."""
    apart = []
    for prompt in PROMPTS:
        ids = golden_arrays(GOLDEN)[f"p{prompt}.ids"]
        with torch.no_grad(), RoundedInputs():
            theirs = dequantised(torch.from_numpy(ids)[None].long()).logits[0].numpy()
        difference = logits_of(published, ids) - theirs
        assert rms(difference) < FED_BACK_ACTIVATIONS_RMS
        apart += [*np.abs(difference).max(-1)]
    assert np.mean(np.array(apart) < FLOAT32_ATOL) > 0.5


@pytest.mark.parametrize("prompt", PROMPTS)
def test_rounded_activations_stay_near_the_golden_logits(published: Target, prompt: int) -> None:
    """The golden file has the same weights and no activation rounded; its logits spread by 1.3."""
    golden = golden_arrays(GOLDEN)
    logits = logits_of(published, golden[f"p{prompt}.ids"])
    kept = np.concatenate([logits[:1], logits[-LAST_ROWS:]])
    assert 1000 * FLOAT32_ATOL < rms(kept - golden[f"p{prompt}.logits"]) < ACTIVATION_SCHEMES_RMS
    np.testing.assert_array_equal(logits.argmax(-1), golden[f"p{prompt}.argmax"])


@pytest.mark.long
def test_rounds_with_a_draft_write_the_golden_text(published: Target) -> None:
    golden = golden_json(GOLDEN)["prompts"]
    draft = load_draft(ORACLES / "draft_minimax_bf16", published)
    greedy = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    prompts = [entry["prompt"] for entry in golden]
    answers = generate(published, draft, prompts, greedy, num_speculative_tokens=3)
    assert [answer.token_ids for answer in answers] == [entry["greedy"] for entry in golden]
    assert sum(sum(answer.accepted) for answer in answers) > 10
