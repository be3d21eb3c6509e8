"""The released drafts' names, shapes and configurations against the draft's table."""

import json
from pathlib import Path
from typing import Any

import pytest
from oracle_files import ORACLES

from convert.files.safetensors_files import Checkpoint, TensorInfo
from convert.published.directory import Published
from convert.published.parameters import abstract_draft, plan_draft
from convert.published.weights import find_weights
from eagle3_jax.config import DraftConfig

PUBLISHED = ORACLES / "published"
PUBLISHED_LAYERS = 61


def read(name: str) -> Any:
    return json.loads((PUBLISHED / f"{name}.json").read_text(encoding="utf-8"))


def listed(name: str, config: dict[str, Any], prefix: str | None = None) -> Published:
    """A checkpoint as its manifest lists it, its layer under another prefix if asked for."""
    tensors = {}
    for entry in read(f"{name}.manifest")["tensors"]:
        full = entry["name"]
        if prefix is not None:
            full = full.replace("layers.0.", prefix)
        tensors[full] = TensorInfo(full, entry["dtype"], tuple(entry["shape"]), Path(name), 0)
    weights, misfits = find_weights(tensors.values())
    checkpoint = Checkpoint(Path(name), tensors)
    return Published(Path(name), config, checkpoint, weights, misfits, None)


@pytest.mark.parametrize("prefix", [None, "midlayer.", "model.layers.0."])
@pytest.mark.parametrize(
    "config", ["kimi-k2.5-eagle3-mla.config", "kimi-k2.5-eagle3-mla.native-ids.config"]
)
def test_every_tensor_of_the_latent_draft_has_its_place(config: str, prefix: str | None) -> None:
    published = listed("kimi-k2.5-eagle3-mla", read(config), prefix)
    draft_config = DraftConfig.from_hf(published.config, num_target_layers=PUBLISHED_LAYERS)
    assert draft_config.aux_layer_ids == (2, 30, 58)
    draft = abstract_draft(draft_config, "bfloat16")
    planned = plan_draft(published, draft, ())
    assert not planned.plan.dropped
    assert set(planned.plan.sources) == set(planned.shapes)
    assert draft.pool_rows == ((576,),)


def test_the_latent_drafts_queries_may_have_full_rank() -> None:
    config = {**read("kimi-k2.5-eagle3-mla.config"), "q_lora_rank": None}
    draft_config = DraftConfig.from_hf(config, num_target_layers=PUBLISHED_LAYERS)
    attention = abstract_draft(draft_config, "bfloat16").midlayer.self_attn
    assert attention.q_proj.kernel.get_value().shape == (2 * 7168, 64 * 192)


def test_the_example_of_speculators_is_the_published_draft_with_fewer_ids() -> None:
    """Its names are those of the Llama draft; its vocabulary is smaller, its residual normed."""
    config = DraftConfig.from_hf(
        read("speculators-eagle3.example.config"), num_target_layers=PUBLISHED_LAYERS
    )
    plain = DraftConfig.from_hf(read("kimi-k2.5-eagle3.config"), num_target_layers=PUBLISHED_LAYERS)
    assert (config.draft_vocab_size, config.norm_before_residual) == (32000, True)
    same = ("hidden_size", "num_key_value_heads", "head_dim", "rope", "aux_layer_ids", "latent")
    for name in same:
        assert getattr(config, name) == getattr(plain, name), name
