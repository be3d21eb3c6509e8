"""The targets against hidden states and logits that transformers computed."""

import numpy as np
import pytest
from cache_free import padded
from oracle_files import PROMPTS, golden_arrays
from tolerances import FLOAT32_ATOL

from eagle3_jax.full_pass import forward


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(
    ("model", "goldens"), [("target", "kimi_bf16_f32"), ("minimax", "minimax_bf16_f32")]
)
def test_logits_and_every_residual_stream_are_those_of_transformers(
    request: pytest.FixtureRequest, model: str, goldens: str, prompt: int
) -> None:
    """aux id k is the input of layer k; the golden file's last state is after the final norm."""
    target, golden = request.getfixturevalue(model), golden_arrays(goldens)
    layers = target.config.num_hidden_layers
    ids = padded(golden[f"p{prompt}.ids"])[None]
    out = forward(target, ids, aux_layer_ids=range(layers + 1))
    expected = golden[f"p{prompt}.logits"]
    logits = np.asarray(out.logits)[0, : len(expected)]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=FLOAT32_ATOL)
    np.testing.assert_array_equal(logits.argmax(-1), golden[f"p{prompt}.argmax"])
    aux = out.aux_hidden[0]
    streams = np.split(np.asarray(aux), layers + 1, axis=-1)
    streams[-1] = np.asarray(target.norm(aux[:, -target.config.hidden_size :]))
    for k, stream in enumerate(streams):
        expected = golden[f"p{prompt}.hidden.{k}"]
        ours = stream[: len(expected)]
        np.testing.assert_allclose(ours, expected, rtol=0, atol=FLOAT32_ATOL, err_msg=f"layer {k}")
