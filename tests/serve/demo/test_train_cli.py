"""eagle3-train on tiny models: what it writes loads, it resumes, it refuses what it can not do."""

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
from oracle_files import ORACLES
from processes import Forked
from safetensors import safe_open
from safetensors.numpy import load_file

from convert import load_draft, load_target, load_tokenizer, save_hf
from convert.outline import Outline
from eagle3_jax.config import LlamaConfig
from eagle3_jax.full_pass import draft_forward, forward
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.models.llama import LlamaTarget
from serve.demo import recipe
from serve.demo.corpus import conversations
from serve.demo.pictures.recipe import DRAFT
from serve.demo.tokenizer import train_ranks, write_tokenizer
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
    sizes = ["--rows", "2", "--row-length", "128", "--unroll", "2", "--draft-vocab", "50"]
    where = ["--target", str(target), "--data", str(data), "--output", str(output)]
    return ["draft", *where, *sizes, "--intermediate-size", "32", *more]


def test_a_draft_loads_and_resumes_to_the_same_weights(
    target_dir: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(draft_command(target_dir, data, whole, "--steps", "4", "--save-every", "2")) == 0
    assert main(draft_command(target_dir, data, whole, "--steps", "4")) == 2
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
    killed_after(draft_command(target_dir, data, parts, "--steps", "4", "--save-every", "1"), 3)
    assert not (parts / "model.safetensors").exists()
    assert main(draft_command(target_dir, data, parts, "--steps", "4", "--resume")) == 0
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


SHAPES = {
    "grouped": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24},
    "latent": {"num_attention_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 8}
    | {"qk_rope_head_dim": 8, "v_head_dim": 12, "q_lora_rank": None},
}
ARCHITECTURES = {"grouped": "LlamaForCausalLMEagle3", "latent": "Eagle3DeepseekV2ForCausalLM"}


@pytest.mark.parametrize("kind", SHAPES)
def test_a_draft_of_any_published_shape_trains_from_there_and_is_judged_as_served(
    kind: str, target_dir: Path, data: Path, tmp_path: Path
) -> None:
    """Judged in one of the shapes: an engine each."""
    sizes = {"hidden_size": 64, "intermediate_size": 48, "vocab_size": BASE + 256}
    sizes |= {"draft_vocab_size": 60, "eagle_aux_hidden_state_layer_ids": [0, 0, 1]}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"architectures": [ARCHITECTURES[kind]], **sizes, **SHAPES[kind]}))
    rows = ["--rows", "2", "--row-length", "128", "--unroll", "2", "--loss", "lk"]
    command = ["draft", "--target", str(target_dir), "--data", str(data), *rows, "--steps", "2"]
    judged = ["--eval-every", "1", "--eval-data", str(data), "--eval-prompts", "2"]
    judged = [*judged, "--eval-tokens", "4"] if kind == "latent" else []
    first, second = tmp_path / "first", tmp_path / "second"
    shape = ["--draft-config", str(config), "--output", str(first)]
    assert main([*command, *shape, *judged]) == 0
    log = (first / "training" / "log.jsonl").read_text().splitlines()
    if judged:
        assert all(1 <= json.loads(line)["served_accept_length"] <= 4 for line in log)
    target = load_target(target_dir)
    made = load_draft(first, target)
    published = json.loads(config.read_text())
    assert made.config.num_attention_heads == 4 and made.config.draft_vocab_size == 60
    assert (made.config.latent is None) == (kind == "grouped")
    assert published["intermediate_size"] == made.config.intermediate_size
    # A second run begins where the first ended: nearly the same weights, and the very same ids.
    onward = ["--init-from", str(first), "--output", str(second), "--learning-rate", "1e-9"]
    assert main([*command, *onward]) == 0
    again = load_draft(second, target)
    for a, b in zip(*(jax.tree.leaves(nnx.state(d)) for d in (made, again)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-2, rtol=1e-2)


def test_an_embedding_of_the_first_drafts_own_is_kept_and_the_rest_is_trained(
    target_dir: Path, data: Path, tmp_path: Path
) -> None:
    width = {"hidden_size": 64, "target_hidden_size": 64, "vocab_size": BASE + 256}
    small = {"intermediate_size": 32, "draft_vocab_size": 50, "aux_layer_ids": (1, 1, 2)}
    config = replace(DRAFT, **width, **small)
    save_hf(Eagle3Draft(config, rngs=nnx.Rngs(7), dtype=jnp.bfloat16), tmp_path / "first")
    onward = ["--init-from", str(tmp_path / "first"), "--steps", "2", "--learning-rate", "0.1"]
    rows = ["--rows", "2", "--row-length", "128", "--unroll", "2", *onward]
    where = ["--target", str(target_dir), "--data", str(data), "--output", str(tmp_path / "out")]
    assert main(["draft", *where, *rows]) == 0
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "out"))
    assert before.keys() == after.keys()
    kept = {name for name in before if np.array_equal(before[name], after[name])}
    assert {name for name in kept if "norm" not in name} == {"embed_tokens.weight", "d2t", "t2d"}


ARCHITECTURE = {"kimi": TINY, "minimax": replace(recipe.MINIMAX, **SIZES)}


@pytest.mark.parametrize("architecture", [pytest.param("kimi", marks=pytest.mark.long), "minimax"])
def test_a_target_is_written_with_all_its_files(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ARCHITECTURE[architecture]
    monkeypatch.setitem(recipe.TARGETS, architecture, config)
    monkeypatch.setattr(recipe, "make_tokenizer", write_tiny_tokenizer)
    monkeypatch.setattr(recipe, "ROWS", 2)
    monkeypatch.setattr(recipe, "ROW_LENGTH", 800)
    where = ["--output", str(tmp_path), "--architecture", architecture]
    assert main(["target", *where, "--steps", "2"]) == 0
    assert load_target(tmp_path).config == config
    assert load_tokenizer(tmp_path).eos_token_ids == (BASE + 2,)
    lines = (tmp_path / "training" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_a_line_that_is_no_conversation_is_named(
    target_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    answer = '{"messages": [{"role": "assistant", "content": "hi"}]}'
    bad.write_text(f'{answer}\n{{"prompt": "x"}}\n')
    assert main(draft_command(target_dir, bad, tmp_path / "out")) == 2
    assert "line 2" in capsys.readouterr().err


def test_a_missing_target_is_one_clear_error(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(draft_command(tmp_path / "nowhere", data, tmp_path / "out")) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_draft_in_the_place_of_the_target_is_said_so_and_nothing_is_left_behind(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(draft_command(ORACLES / "draft_mha_bf16", data, tmp_path / "out")) == 2
    assert "config.json: this is an EAGLE-3 draft" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_target_without_a_chat_template_is_refused_before_a_weight_is_read(
    target_dir: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for path in target_dir.iterdir():
        if path.name != "chat_template.jinja":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(Outline, "fill", lambda self: pytest.fail("weights are read"))
    assert main(draft_command(tmp_path, data, tmp_path / "out")) == 2
    assert "no chat template" in capsys.readouterr().err


def test_latent_attention_needs_kimis(
    target_dir: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    widths = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2}
    config = {"model_type": "llama", "vocab_size": BASE + 256, "num_hidden_layers": 3, **widths}
    more = {"num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-6, "rope_theta": 1e4}
    config |= more | {"max_position_embeddings": 64, "eos_token_id": BASE + 2}
    save_hf(LlamaTarget(LlamaConfig.from_hf(config), rngs=nnx.Rngs(0)), tmp_path)
    write_tiny_tokenizer(tmp_path)
    assert main(draft_command(tmp_path, data, tmp_path / "out", "--attention", "latent")) == 2
    assert "use --attention grouped" in capsys.readouterr().err


CONTRADICTIONS = {
    "what the draft's shape is": ["--init-from", "a", "--draft-vocab", "5"],
    "needs --eval-data": ["--eval-every", "5", "--data", "d.jsonl"],
    "the synthetic corpus has no end": ["--epochs", "2"],
    "go together": ["--num-processes", "2"],
}


@pytest.mark.parametrize("said", CONTRADICTIONS)
def test_flags_that_contradict_each_other_are_named(
    said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["draft", "--target", "t", "--output", str(tmp_path / "out"), *CONTRADICTIONS[said]]
    assert main(command) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--steps", "--unroll", "--rows", "--accumulate"])
def test_numbers_below_one_are_refused(flag: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["draft", "--target", "t", "--output", str(tmp_path), flag, "0"])
    assert stop.value.code == 2
