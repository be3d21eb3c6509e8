"""eagle3-train on tiny models: what it writes loads, it resumes, it refuses what it can not do."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open

from convert import load_draft, load_target, load_tokenizer, save_hf
from convert.quantize.run import prepare, write
from convert.quantize.schemes import scheme_of
from eagle3_jax.config import LlamaConfig
from eagle3_jax.full_pass import draft_forward, forward
from eagle3_jax.layers.moe import MoE
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.models.llama import LlamaTarget
from eagle3_jax.training.packing import PackedBatch
from eagle3_jax.training.target_pass import target_pass
from pallas_kernels import QuantizedArray
from serve.demo import recipe
from serve.demo.corpus import conversations
from serve.demo.tokenizer import train_ranks, write_tokenizer
from serve.train.cli import main

BASE = 300
TINY = replace(
    recipe.TARGET,
    vocab_size=BASE + 256,
    hidden_size=64,
    intermediate_size=64,
    moe_intermediate_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    n_routed_experts=4,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=8,
    v_head_dim=8,
    eos_token_ids=(BASE + 2,),
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
    with np.load(whole / "training" / "state.npz") as state:
        assert int(state["step"]) == 4
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
    interrupt_after(parts, target_dir, data, 2)
    assert main(draft_command(target_dir, data, parts, "--steps", "4", "--resume")) == 0
    assert (parts / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_draft_trains_on_the_features_of_a_quantised_target(
    target_dir: Path, data: Path, tmp_path: Path
) -> None:
    quantised, output = tmp_path / "quantised", tmp_path / "draft"
    write(prepare(target_dir, quantised, scheme_of("int4")))
    assert main(draft_command(quantised, data, output, "--steps", "2")) == 0
    target = load_target(quantised, quantize_activations=False)
    mlp = target.layers[-1].mlp
    assert isinstance(mlp, MoE)
    assert isinstance(mlp.experts.up_proj.get_value(), QuantizedArray)
    assert load_draft(output, target).config.draft_vocab_size == 50
    # Four tokens overload no expert, so that the pass drops none of their choices.
    tokens = np.array([[5, 9, 70, 33]], np.int32)
    rows = PackedBatch(tokens, np.ones_like(tokens), np.arange(4, dtype=np.int32)[None], tokens > 0)
    served = forward(target, tokens, aux_layer_ids=(1, 2))
    streams = target_pass(target, rows).streams
    features = np.concatenate([streams[1], streams[2]], axis=-1)
    np.testing.assert_allclose(features, served.aux_hidden, atol=1e-5)


def interrupt_after(output: Path, target_dir: Path, data: Path, steps: int) -> None:
    from eagle3_jax.training import loop

    def stop(path: Path, state: object, step: int) -> None:
        saved(path, state, step)
        raise KeyboardInterrupt

    saved = loop.save_state
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "save_state", stop)
        with pytest.raises(KeyboardInterrupt):
            every = ["--steps", "4", "--save-every", str(steps)]
            main(draft_command(target_dir, data, output, *every))


def test_a_target_is_written_with_all_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "TARGET", TINY)
    monkeypatch.setattr(recipe, "make_tokenizer", write_tiny_tokenizer)
    monkeypatch.setattr(recipe, "ROWS", 2)
    monkeypatch.setattr(recipe, "ROW_LENGTH", 800)
    assert main(["target", "--output", str(tmp_path), "--steps", "2"]) == 0
    assert load_target(tmp_path).config == TINY
    assert load_tokenizer(tmp_path).eos_token_ids == (BASE + 2,)
    lines = (tmp_path / "training" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_a_line_that_is_no_conversation_is_named(
    target_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n{"prompt": "x"}\n')
    assert main(draft_command(target_dir, bad, tmp_path / "out")) == 2
    assert "line 2" in capsys.readouterr().err


def test_a_missing_target_is_one_clear_error(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(draft_command(tmp_path / "nowhere", data, tmp_path / "out")) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_tokenizer_without_kimis_chat_tokens_is_refused_before_a_weight_is_read(
    target_dir: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tiktoken.model", "tokenizer_config.json", "config.json"):
        text = (target_dir / name).read_bytes().replace(b"<|im_middle|>", b"<|im_others|>")
        (tmp_path / name).write_bytes(text)
    assert main(draft_command(tmp_path, data, tmp_path / "out")) == 2
    assert "must have them; this one lacks <|im_middle|>\n" in capsys.readouterr().err


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


@pytest.mark.parametrize("flag", ["--steps", "--unroll", "--rows"])
def test_numbers_below_one_are_refused(flag: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["draft", "--target", "t", "--output", str(tmp_path), flag, "0"])
    assert stop.value.code == 2
