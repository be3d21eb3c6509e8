"""Targets beside transformers' own, with random weights and sizes that no checkpoint has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tolerances import FLOAT32_ATOL

from convert import load_target, save_hf
from eagle3_jax.full_pass import forward

IDS = np.random.default_rng(0).integers(0, 96, (2, 17))


SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 20,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def minimax() -> Any:
    experts = {"num_local_experts": 5, "num_experts_per_tok": 3}
    rotary: dict[str, Any] = {"rotary_dim": 12, "rope_theta": 10000.0}
    return transformers.MiniMaxM2ForCausalLM(
        transformers.MiniMaxM2Config(**SIZES, **experts, **rotary)
    )


def llama() -> Any:
    scaling = {"rope_theta": 500.0, "rope_type": "yarn", "factor": 4.0}
    rope: dict[str, Any] = {"rope_parameters": scaling | {"original_max_position_embeddings": 8}}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **rope))


MODELS: dict[str, Callable[[], Any]] = {"minimax": minimax, "llama": llama}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    """Norms and biases are not what they begin as, so that one that is missing shows."""
    torch.manual_seed(0)
    made = MODELS[request.param]().eval()
    with torch.no_grad():
        for name, tensor in [*made.named_parameters(), *made.named_buffers()]:
            if "norm" in name or "bias" in name:
                tensor += 0.2 * torch.randn_like(tensor)
            elif "inv_freq" not in name:
                tensor *= 5
    return made


def hidden_and_logits(model: Any) -> tuple[list[np.ndarray], np.ndarray]:
    with torch.no_grad():
        out = model(torch.from_numpy(IDS), output_hidden_states=True)
    return [state.numpy() for state in out.hidden_states], out.logits.numpy()


def test_hidden_states_and_logits_are_those_of_transformers(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    target = load_target(tmp_path)
    states, logits = hidden_and_logits(model)
    layers = target.config.num_hidden_layers
    out = forward(target, IDS, aux_layer_ids=range(layers))
    np.testing.assert_allclose(out.logits, logits, rtol=0, atol=FLOAT32_ATOL)
    for ours, theirs in zip(np.split(out.aux_hidden, layers, -1), states, strict=False):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=FLOAT32_ATOL)


def test_transformers_reads_what_we_write(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "theirs")
    save_hf(load_target(tmp_path / "theirs"), tmp_path / "ours", dtype="float32")
    read = type(model).from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    for name, tensor in model.state_dict().items():
        assert torch.equal(read.state_dict()[name], tensor), name
    np.testing.assert_array_equal(hidden_and_logits(read)[1], hidden_and_logits(model)[1])
