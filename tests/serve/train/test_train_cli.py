"""eagle3-train on tiny models: what it writes loads, and a killed run goes on to the same bits."""

import json
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from processes import Forked
from safetensors import safe_open
from safetensors.numpy import load_file

from convert import load_draft, load_target, save_hf
from eagle3_jax.full_pass import draft_forward, forward
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from eagle3_tools.make_demo import recipe
from eagle3_tools.make_demo.corpus import conversations
from eagle3_tools.make_demo.pictures.recipe import DRAFT
from eagle3_tools.make_demo.tokenizer import train_ranks, write_tokenizer
from serve.train.cli import main

BASE = 300
SIZES: dict[str, Any] = {
    "vocab_size": BASE + 256,
    "hidden_size": 64,
    "intermediate_size": 64,
    "eos_token_ids": (BASE + 2,),
}
TINY = replace(
    recipe.TARGET,
    **SIZES,
    moe_intermediate_size=32,
    num_hidden_layers=3,
    num_attention_heads=2,
    n_routed_experts=4,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=8,
    v_head_dim=8,
)


def write_tiny_tokenizer(directory: Path) -> None:
    texts = [c.messages[0]["content"] for c in islice(conversations("facts", "train", 0), 200)]
    write_tokenizer(directory, train_ranks(texts, BASE), 256)


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("target")
    save_hf(KimiTarget(TINY, rngs=nnx.Rngs(0)), directory)
    write_tiny_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "chat.jsonl"
    lines = (
        json.dumps({"messages": c.messages}) for c in islice(conversations("facts", "train", 0), 60)
    )
    path.write_text("\n".join(lines))
    return path


def draft_command(target: Path, data: Path, output: Path, *more: str) -> list[str]:
    where = ["--target", str(target), "--data", str(data), "--output", str(output)]
    return ["draft", *where, "--rows", "2", "--row-length", "128", "--unroll", "2", *more]


def test_a_draft_loads_and_resumes_to_the_same_weights(
    target_dir: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    sizes = ("--draft-vocab", "50", "--intermediate-size", "32", "--steps", "4")
    assert main(draft_command(target_dir, data, whole, *sizes, "--save-every", "2")) == 0
    assert main(draft_command(target_dir, data, whole, *sizes)) == 2
    assert "--resume" in capsys.readouterr().err
    with safe_open(whole / "model.safetensors", "np") as file:
        names = set(file.keys())
    assert "d2t" in names and not [name for name in names if "embed_tokens" in name]
    target = load_target(target_dir)
    draft = load_draft(whole, target)
    assert draft.config.aux_layer_ids == (1, 1, 2) and draft.config.draft_vocab_size == 50
    tokens = np.ones((1, 8), np.int32)
    aux = forward(target, tokens, aux_layer_ids=draft.config.aux_layer_ids).aux_hidden
    logits, _ = draft_forward(draft, tokens, aux)
    assert logits.shape == (1, 8, 50) and np.isfinite(logits).all()
    # The schedule knows the goal, so a part of the run is an interrupted run, not a shorter one.
    killed_after(draft_command(target_dir, data, parts, *sizes, "--save-every", "1"), 3)
    assert not (parts / "model.safetensors").exists()
    assert main(draft_command(target_dir, data, parts, *sizes, "--resume")) == 0
    assert (parts / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def killed_after(command: list[str], steps: int) -> None:
    """Starts the command and kills it, without a warning, once so many steps are logged."""
    output = Path(command[command.index("--output") + 1])
    # With as many devices as here: XLA sums otherwise on as many threads as there are others.
    process = Forked("serve.train.cli", command, environment={"JAX_NUM_CPU_DEVICES": "8"})
    log = output / "training" / "log.jsonl"
    while not (log.exists() and log.read_text().count("\n") >= steps):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()


GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24}
LATENT = {"num_attention_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 8}
LATENT |= {"qk_rope_head_dim": 8, "v_head_dim": 12, "q_lora_rank": None}


@pytest.mark.long
@pytest.mark.parametrize(
    ("architecture", "shape"),
    [
        pytest.param("LlamaForCausalLMEagle3", GROUPED, id="grouped"),
        pytest.param("Eagle3DeepseekV2ForCausalLM", LATENT, id="latent"),
    ],
)
def test_a_draft_of_any_published_shape_trains_from_there_and_is_judged_as_served(
    architecture: str, shape: dict[str, Any], target_dir: Path, data: Path, tmp_path: Path
) -> None:
    published = {"architectures": [architecture], "hidden_size": 64, "intermediate_size": 48}
    published |= {"vocab_size": BASE + 256, "draft_vocab_size": 60, **shape}
    published |= {"eagle_aux_hidden_state_layer_ids": [0, 0, 1]}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(published))
    first, second, target = tmp_path / "first", tmp_path / "second", load_target(target_dir)
    judged = ["--eval-every", "1", "--eval-data", str(data), "--eval-prompts", "2"]
    judged += ["--eval-tokens", "4", "--draft-config", str(config), "--loss", "lk", "--steps", "2"]
    assert main(draft_command(target_dir, data, first, *judged)) == 0
    log = (first / "training" / "log.jsonl").read_text().splitlines()
    assert all(1 <= json.loads(line)["served_accept_length"] <= 4 for line in log)
    made = load_draft(first, target)
    assert made.config.num_attention_heads == 4 and made.config.draft_vocab_size == 60
    assert (made.config.latent is None) == (shape is GROUPED)
    assert made.config.intermediate_size == 48
    # A second run begins where the first ended: nearly the same weights, and the very same ids.
    onward = ["--init-from", str(first), "--learning-rate", "1e-9", "--steps", "2"]
    assert main(draft_command(target_dir, data, second, *onward)) == 0
    again = load_draft(second, target)
    for a, b in zip(*(jax.tree.leaves(nnx.state(d)) for d in (made, again)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-2, rtol=1e-2)


@pytest.mark.long
def test_an_embedding_of_the_first_drafts_own_is_kept_and_the_rest_is_trained(
    target_dir: Path, data: Path, tmp_path: Path
) -> None:
    width = {"hidden_size": 64, "target_hidden_size": 64, "vocab_size": BASE + 256}
    small = {"intermediate_size": 32, "draft_vocab_size": 50, "aux_layer_ids": (1, 1, 2)}
    config = replace(DRAFT, **width, **small)
    save_hf(Eagle3Draft(config, rngs=nnx.Rngs(7), dtype=jnp.bfloat16), tmp_path / "first")
    onward = ["--init-from", str(tmp_path / "first"), "--steps", "2", "--learning-rate", "0.1"]
    assert main(draft_command(target_dir, data, tmp_path / "out", *onward)) == 0
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "out"))
    assert before.keys() == after.keys()
    kept = {name for name in before if np.array_equal(before[name], after[name])}
    assert {name for name in kept if "norm" not in name} == {"embed_tokens.weight", "d2t", "t2d"}
