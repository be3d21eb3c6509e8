"""A checkpoint loaded by its hub id is the one loaded from its directory."""

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from image_goldens import CHECKPOINT
from local_hub import LocalHub
from oracle_files import ORACLES

from convert import Source, load_draft, load_target, load_tokenizer, load_vision
from eagle3_jax.models.target import Target

DRAFT = ORACLES / "draft_mha_fp8_ptpc"


def same_weights(ours: nnx.Module, theirs: nnx.Module) -> bool:
    pairs = zip(*(jax.tree.leaves(nnx.state(model)) for model in (ours, theirs)), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def test_weights_are_the_directorys(hub: LocalHub, target: Target) -> None:
    by_id = load_target("org/kimi", dtype="float32")
    assert same_weights(by_id, target)
    hub.add("org/draft", ORACLES / "draft_mha_bf16")
    hub.add("org/draft", DRAFT, "fp8")
    draft = load_draft(Source("org/draft", "fp8"), by_id)
    assert same_weights(draft, load_draft(DRAFT, target))


def test_vision_is_loaded_of_a_revision_into_the_directory_that_is_asked_for(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.add("org/kimi", CHECKPOINT, "vision")
    vision = load_vision(Source("org/kimi", "vision", str(tmp_path / "elsewhere")))
    assert same_weights(vision, load_vision(CHECKPOINT))
    assert vision.config == load_vision(CHECKPOINT).config
    assert "preprocessor_config.json" in hub.downloaded()
    assert (tmp_path / "elsewhere").is_dir() and not (tmp_path / "cache").exists()


def test_tokens_are_the_directorys_and_no_weight_is_downloaded(
    hub: LocalHub, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").touch()
    for path in (ORACLES / "tokenizer").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    hub.add("org/chat", tmp_path)
    ours, theirs = load_tokenizer("org/chat"), load_tokenizer(ORACLES / "tokenizer")
    chat = [{"role": "user", "content": "What is 95 + 61?"}]
    assert ours.encode_chat(chat) == theirs.encode_chat(chat)
    assert "model.safetensors" not in hub.downloaded()


def test_the_environment_is_the_hub_librarys(hub: LocalHub, tmp_path: Path) -> None:
    """Of a process of its own: endpoint, home, token and offline mode."""
    hub.gated.add("org/kimi")
    find = "from convert.hub.checkpoint import find_config; print(find_config('org/kimi'))"
    places = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home")}
    environment = {**places, "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])}

    def run(**more: str) -> str:
        command, env = [sys.executable, "-c", find], {**environment, **more}
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
        return (done.stdout or done.stderr).splitlines()[-1]

    assert "org/kimi is gated" in run()
    found = run(HF_TOKEN=hub.token)
    assert Path(found).is_relative_to(tmp_path / "home" / "hub")
    assert run(HF_HUB_OFFLINE="1") == found
    assert hub.downloaded() == ["config.json"]
