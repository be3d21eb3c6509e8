"""Quantised checkpoints load, and their weights have the values that were written."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from decoding import dequantize
from edited import Tensors, copy_edited
from oracle_files import ORACLES
from quantizing import quantized
from sweeps import sweep
from tolerances import FLOAT32_ATOL

from convert import load_draft, load_target
from convert.files.safetensors_files import Checkpoint
from convert.published.weights import parts_by_weight
from convert.quantize.accept_change import accept_length, read_prompts
from eagle3_jax import draft_forward, forward
from eagle3_jax.generation import Generation
from eagle3_jax.models.target import Target

DRAFT, KIMI = ORACLES / "quantizer/source", ORACLES / "kimi_bf16"
TOKENS = np.array([[5, 9, 70, 33, 8]])


def dequantized_copy(source: Path, checkpoint: Checkpoint, into: Path) -> Path:
    """The source with the weights that `checkpoint` stands for, in float32."""

    def widen(_: Tensors) -> Tensors:
        return {
            name: dequantize({part: checkpoint.read(info.name) for part, info in parts.items()})
            for name, parts in parts_by_weight(checkpoint.tensors.values()).items()
        }

    return copy_edited(source, into, tensors=widen)


@pytest.mark.parametrize(
    ("scheme", "group_size"),
    [("ptpc_fp8", None), ("int4", None), ("int4", 32), ("mxfp4", None), ("fp8_block", None)],
)
def test_a_quantised_draft_computes_with_the_weights_that_were_written(
    scheme: str, group_size: int | None, target: Target, tmp_path: Path
) -> None:
    written = quantized(DRAFT, tmp_path / "out", scheme, group_size)
    plain = load_draft(dequantized_copy(DRAFT, written, tmp_path / "plain"), target)
    draft = load_draft(tmp_path / "out", target, quantize_activations=False)
    size = draft.config.target_hidden_size * len(draft.config.aux_layer_ids)
    aux = np.random.default_rng(0).normal(size=(1, TOKENS.shape[1], size)).astype(np.float32)
    ours, expected = draft_forward(draft, TOKENS, aux), draft_forward(plain, TOKENS, aux)
    np.testing.assert_allclose(ours[0], expected[0], atol=FLOAT32_ATOL)


@pytest.mark.parametrize("scheme", sweep(["mxfp4", "fp8_block"], ["fp8_block"]))
def test_a_quantised_target_computes_with_the_weights_that_were_written(
    scheme: str, tmp_path: Path
) -> None:
    written = quantized(KIMI, tmp_path / "out", scheme)
    plain = load_target(dequantized_copy(KIMI, written, tmp_path / "plain"), dtype=jnp.float32)
    target = load_target(tmp_path / "out", dtype=jnp.float32, quantize_activations=False)
    ours, expected = forward(target, TOKENS), forward(plain, TOKENS)
    np.testing.assert_allclose(ours.logits, expected.logits, atol=FLOAT32_ATOL)


def test_accept_length_counts_the_bonus_token() -> None:
    answers = [Generation([1] * 7, "length", [3, 0, 1], 0), Generation([1], "length", [], 0)]
    assert accept_length(answers) == (1 + 4 / 3, 3)
    assert accept_length(answers[1:]) == (1, 0)


def test_prompts_are_ids_or_text(tmp_path: Path) -> None:
    lines: list[Any] = [[1, 2], {"token_ids": [3]}, "Hello", {"prompt": "Hello"}]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    first, second, text, same = read_prompts(path, ORACLES / "tokenizer")
    assert (first, second) == ([1, 2], [3])
    assert text == same and len(text) > 0


@pytest.mark.parametrize("line", ["Hello", "[]", "[1.5]", '{"text": "Hello"}', "[true]", "3"])
def test_a_line_that_is_no_prompt_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f"[1]\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 2 is n"):
        read_prompts(path, ORACLES / "tokenizer")
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match="holds no prompts"):
        read_prompts(path, ORACLES / "tokenizer")
