"""Loading: layouts, types, sharing and overrides."""

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from edited import Tensors, copy_edited
from like_whole import arrays_of, assert_same_weights
from oracle_files import DRAFTS, ORACLES
from safetensors.numpy import load_file

from convert import load_draft, load_target
from eagle3_jax.models.target import Target

FULL, REDUCED = (ORACLES / name for name in DRAFTS)


@pytest.mark.parametrize("prefix", ["model.", "language_model."])
def test_targets_under_other_prefixes_are_the_same(
    target: Target, prefix: str, tmp_path: Path
) -> None:
    def rename(tensors: Tensors) -> Tensors:
        inner = {k.replace("language_model.model.", prefix): v for k, v in tensors.items()}
        return {k.replace("language_model.lm_head", "lm_head"): v for k, v in inner.items()}

    bare = copy_edited(
        ORACLES / "kimi_bf16",
        tmp_path / "bare",
        tensors=rename,
        config=lambda published: {**published["text_config"], "eos_token_id": 321},
    )
    loaded = load_target(bare)
    # A bare text model has no place for images.
    assert loaded.config == replace(target.config, media_placeholder_token_id=None)
    assert_same_weights(loaded, target)


def test_float16_and_float32_files_are_cast_to_the_run_dtype(
    target: Target, tmp_path: Path
) -> None:
    def mix(tensors: Tensors) -> None:
        for name in ("midlayer.hidden_norm.weight", "norm.weight"):  # float16 holds them exactly
            tensors[name] = tensors[name].astype(np.float16)
        tensors["lm_head.weight"] = tensors["lm_head.weight"].astype(np.float32)

    mixed = copy_edited(FULL, tmp_path / "mixed", tensors=mix)
    found, expected = (load_draft(path, target, dtype="float32") for path in (mixed, FULL))
    assert_same_weights(found, expected)
    narrow = arrays_of(load_draft(mixed, target, dtype="bfloat16"))
    assert {str(a.dtype) for a in narrow.values()} == {"bfloat16"}


def test_a_bfloat16_checkpoint_takes_two_bytes_a_weight_on_a_cpu(target: Target) -> None:
    kept = arrays_of(target)
    wide = arrays_of(load_target(ORACLES / "kimi_bf16", dtype="float32"))
    for name, array in kept.items():
        np.testing.assert_array_equal(array.astype(np.float32), wide[name])
    # A real model has a smaller share of norms, routers and absorbed kernels, which are widened.
    sizes = (sum(array.nbytes for array in arrays.values()) for arrays in (kept, wide))
    assert next(sizes) < 0.52 * next(sizes)
    assert target.dtype == np.float32


def test_the_correction_bias_stays_float32_in_bfloat16(target: Target) -> None:
    narrow = load_target(ORACLES / "kimi_bf16", dtype=jnp.bfloat16)
    types = {name: str(a.dtype) for name, a in arrays_of(narrow).items()}
    biases = {name for name in types if name.endswith("e_score_correction_bias")}
    assert len(biases) == 3
    assert {types[name] for name in biases} == {"float32"}
    assert {types[name] for name in set(types) - biases} == {"bfloat16"}


def test_absent_modules_are_the_targets_own(target: Target, tmp_path: Path) -> None:
    def strip(tensors: Tensors) -> None:
        del tensors["embed_tokens.weight"], tensors["lm_head.weight"]

    before = arrays_of(target)
    draft = load_draft(copy_edited(FULL, tmp_path / "bare", tensors=strip), target)
    assert draft.embed_tokens is target.embed_tokens
    assert draft.lm_head is target.lm_head
    for name, array in arrays_of(target).items():
        np.testing.assert_array_equal(array, before[name])


def test_the_head_can_be_chosen(target: Target) -> None:
    assert load_draft(FULL, target, lm_head="target").lm_head is target.lm_head
    assert load_draft(FULL, target, lm_head="own").lm_head is not target.lm_head
    assert load_draft(FULL, target).embed_tokens is not target.embed_tokens
    with pytest.raises(ValueError, match="needs an lm_head for its 192 draft ids"):
        load_draft(REDUCED, target, lm_head="target")


def test_the_id_map_is_the_files(target: Target) -> None:
    """d2t says by how much an id moves, not where it goes."""
    target_ids = load_draft(REDUCED, target).target_ids
    assert target_ids is not None
    moves = load_file(REDUCED / "model.safetensors")["d2t"]
    np.testing.assert_array_equal(target_ids, np.arange(192) + moves)
    assert (moves > 0).any() and len(set(np.asarray(target_ids).tolist())) == 192
    assert load_draft(FULL, target).target_ids is None


def test_options_without_a_meaning_are_refused(target: Target) -> None:
    with pytest.raises(ValueError, match="quantize_activations must be True, False, int8 or fp8"):
        load_target(ORACLES / "kimi_bf16", quantize_activations="int4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="int4_order must be auto, linear or awq, got 'zigzag'"):
        load_draft(FULL, target, int4_order="zigzag")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dtype must be a floating type"):
        load_target(ORACLES / "kimi_bf16", dtype="int8")
