"""MiniMax-M2 and its draft against what transformers, its FP8 and EAGLE's own loop computed."""

import numpy as np
import pytest
from cache_free import draft_chain, padded
from engine_rounds import LONG_CHAINS, SHORT_CHAINS, check_cache_free, check_engine
from oracle_files import ORACLES, PROMPTS, golden_arrays
from tolerances import FLOAT32_ATOL

from convert import load_draft, load_target
from eagle3_jax.full_pass import draft_forward, forward
from eagle3_jax.layers.moe import MoE
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from pallas_kernels import QuantFormat

TARGET, DRAFT = golden_arrays("minimax_bf16_f32"), golden_arrays("draft_minimax_bf16")
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


@each_prompt
def test_fp8_blocks_give_the_logits_of_their_dequantised_weights(prompt: int) -> None:
    golden = golden_arrays("minimax_fp8block_deq_f32")
    target = load_target(ORACLES / "minimax_fp8block", quantize_activations=False)
    ids = golden[f"p{prompt}.ids"]
    logits = np.asarray(forward(target, padded(ids)[None]).logits)[0, : len(ids)]
    kept = np.concatenate([logits[:1], logits[-LAST_ROWS:]])
    np.testing.assert_allclose(kept, golden[f"p{prompt}.logits"], rtol=0, atol=FLOAT32_ATOL)
    np.testing.assert_array_equal(logits.argmax(-1), golden[f"p{prompt}.argmax"])


def test_fp8_blocks_stay_quantised_and_the_router_is_float32() -> None:
    layer = load_target(ORACLES / "minimax_fp8block", dtype="bfloat16").layers[1]
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


@each_prompt
def test_minimax_gives_its_drafts_features(
    minimax: Target, minimax_draft: Eagle3Draft, prompt: int
) -> None:
    """Aux ids nested under eagle_config, as layer outputs 0, 1, 2."""
    ids, golden = padded(DRAFT[f"p{prompt}.ids"][:-1]), DRAFT[f"p{prompt}.aux"]
    aux = forward(minimax, ids[None], aux_layer_ids=minimax_draft.config.aux_layer_ids).aux_hidden
    np.testing.assert_allclose(np.asarray(aux)[0, : len(golden)], golden, rtol=0, atol=FLOAT32_ATOL)


def test_transcripts_of_minimax_are_eagles(minimax: Target, minimax_draft: Eagle3Draft) -> None:
    check_cache_free(minimax, minimax_draft, "draft_minimax_bf16", LONG_CHAINS)


def test_the_engines_rounds_of_minimax_are_eagles(
    minimax: Target, minimax_draft: Eagle3Draft, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_engine(minimax, minimax_draft, "draft_minimax_bf16", SHORT_CHAINS, monkeypatch)
