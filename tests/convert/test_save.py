"""A saved model has the published form and, bit for bit, the loaded weights."""

import json
from pathlib import Path

import numpy as np
import pytest
from edited import copy_edited
from image_goldens import CHECKPOINT
from oracle_files import DRAFTS, FLOAT_DRAFTS, ORACLES

from convert import load_draft, load_target, load_vision, save_hf
from convert.files.safetensors_files import Checkpoint, open_checkpoint
from eagle3_jax.models.target import Target


def assert_same_bits(ours: Checkpoint, theirs: Checkpoint, vision: bool = False) -> None:
    parts = () if vision else ("vision_tower.", "mm_projector.")
    expected = {name for name in theirs.tensors if not name.startswith(parts)}
    assert set(ours.tensors) == expected
    for name in expected:
        assert ours.tensors[name].dtype == theirs.tensors[name].dtype, name
        assert ours.read(name).tobytes() == theirs.read(name).tobytes(), name


def test_a_target_survives_the_round_trip(target: Target, tmp_path: Path) -> None:
    save_hf(target, tmp_path)
    assert_same_bits(open_checkpoint(tmp_path), open_checkpoint(ORACLES / "kimi_bf16"))
    assert load_target(tmp_path).config == target.config
    text = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["text_config"]
    published = json.loads((ORACLES / "kimi_bf16" / "config.json").read_text(encoding="utf-8"))
    shared = set(text) & set(published["text_config"])
    assert len(shared) > 30
    assert {k: text[k] for k in shared - {"eos_token_id"}} == {
        k: published["text_config"][k] for k in shared - {"eos_token_id"}
    }


def test_vision_goes_with_its_target(tmp_path: Path) -> None:
    vision = load_vision(CHECKPOINT)
    save_hf(load_target(CHECKPOINT), tmp_path, vision=vision)
    assert_same_bits(open_checkpoint(tmp_path), open_checkpoint(CHECKPOINT), vision=True)
    assert load_vision(tmp_path).config == vision.config


@pytest.mark.parametrize("name", FLOAT_DRAFTS)
def test_a_draft_survives_the_round_trip(target: Target, name: str, tmp_path: Path) -> None:
    draft = load_draft(ORACLES / name, target)
    save_hf(draft, tmp_path)
    assert_same_bits(open_checkpoint(tmp_path), open_checkpoint(ORACLES / name))
    assert load_draft(tmp_path, target).config == draft.config


def test_shared_modules_are_left_out(target: Target, tmp_path: Path) -> None:
    def without_embedding(tensors: dict[str, np.ndarray]) -> None:
        del tensors["embed_tokens.weight"]

    source = copy_edited(ORACLES / DRAFTS[0], tmp_path / "source", tensors=without_embedding)
    draft = load_draft(source, target)
    save_hf(draft, tmp_path / "saved", shared_with=target)
    assert_same_bits(open_checkpoint(tmp_path / "saved"), open_checkpoint(source))
    save_hf(draft, tmp_path / "whole")
    assert "embed_tokens.weight" in open_checkpoint(tmp_path / "whole").tensors


def test_saving_over_a_loaded_checkpoint_is_safe(target: Target, tmp_path: Path) -> None:
    save_hf(target, tmp_path)
    save_hf(load_target(tmp_path), tmp_path)
    assert_same_bits(open_checkpoint(tmp_path), open_checkpoint(ORACLES / "kimi_bf16"))
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


def test_aux_ids_that_readers_would_misread_are_refused(target: Target, tmp_path: Path) -> None:
    """After-form (2, 3, 3) is the default before-form triple of a target with six layers."""
    draft = load_draft(ORACLES / DRAFTS[0], target)
    config = draft.config
    object.__setattr__(config, "aux_layer_ids", (3, 4, 4))
    with pytest.raises(ValueError, match="look like the default triple of a target with 6 layers"):
        save_hf(draft, tmp_path)


def test_quantised_weights_are_not_saved_as_something_else(target: Target, tmp_path: Path) -> None:
    draft = load_draft(ORACLES / "draft_mha_fp8_ptpc", target)
    with pytest.raises(ValueError, match="quantised weights can't be saved"):
        save_hf(draft, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
