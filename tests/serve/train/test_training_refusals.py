"""Training that is impossible is refused before a weight is read and leaves no directory behind."""

import json
import re
import shutil
from pathlib import Path

import pytest
from flax import nnx
from oracle_files import ORACLES

import serve.train.draft
from convert import save_hf
from convert.abstract_model import AbstractModel
from eagle3_jax.config.llama import LlamaConfig
from eagle3_jax.models.grouped import GroupedQueryTarget
from serve.demo import demo_target_dir
from serve.train import run
from serve.train.cli import main

TARGET = demo_target_dir()
ANSWERED = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
SEEN = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
LLAMA = {
    **{"model_type": "llama", "vocab_size": 1536, "num_hidden_layers": 3, "hidden_size": 64},
    **{"intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32},
    **{
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "max_position_embeddings": 64,
        "eos_token_id": 1282,
    },
}


def command(output: Path, *more: str) -> list[str]:
    return ["draft", "--target", f"{TARGET}", "--output", f"{output}", *more]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories and files that the commands name."""
    places = tmp_path_factory.mktemp("places")
    save_hf(GroupedQueryTarget(LlamaConfig.from_hf(LLAMA), rngs=nnx.Rngs(0)), places / "llama")
    for source in TARGET.glob("t*"):
        shutil.copy(source, places / "llama")
    shutil.copytree(TARGET, places / "untold", ignore=lambda *_: ["chat_template.jinja"])
    lines = [json.dumps({"messages": ANSWERED}), json.dumps({"messages": SEEN + ANSWERED[1:]})]
    (places / "good.jsonl").write_text(lines[0])
    (places / "images.jsonl").write_text("\n".join(lines))
    (places / "other.jsonl").write_text("\n".join([lines[0], lines[0], '{"prompt": "x"}']))
    return places


JUDGED = ("--eval-every", "1", "--eval-data", "{}/good.jsonl")
REFUSED = {
    "3 rows cannot be split evenly over 2": ["--rows", "3", "--data-parallel-size", "2"],
    "4 attention heads cannot be split evenly over 8": ["--tensor-parallel-size", "8"],
    "--aux-layers must be 0..6": ["--aux-layers", "1,7"],
    "--wandb needs the extra": ["--wandb", "project"],
    "more than the target's context of 1024": [*JUDGED, "--eval-tokens", "1024"],
    "line 2: .*takes no images": ["--data", "{}/images.jsonl"],
    "line 2: .*of text alone": ["--eval-every", "1", "--eval-data", "{}/images.jsonl"],
    "other.jsonl, line 3: .*`messages`": ["--data", "{}/other.jsonl"],
    "nowhere": ["--target", "{}/nowhere"],
    "config.json: this is an EAGLE-3 draft": ["--target", f"{ORACLES / 'draft_mha_bf16'}"],
    "no chat template": ["--target", "{}/untold"],
    "use --attention grouped": ["--target", "{}/llama", "--attention", "latent"],
    "for the draft's shape": ["--init-from", "a", "--draft-vocab", "5"],
    "needs --eval-data": ["--eval-every", "5"],
    "eagle3_tools.make_demo corpus": ["--data", ""],
    "go together": ["--num-processes", "2"],
    **{f"{flag}.* 0": [flag, "0"] for flag in ("--steps", "--unroll", "--rows", "--accumulate")},
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_run_that_cannot_be_trained_is_refused_before_a_weight_is_read(
    said: str,
    places: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AbstractModel, "fill", lambda self: pytest.fail("weights are read"))
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    given = ["--data", "{}/good.jsonl", *REFUSED[said]]
    flags = [flag.replace("{}", f"{places}") for flag in given]
    try:
        status = main(command(tmp_path / "out", *flags))
    except SystemExit as left:
        status = left.code
    assert status == 2
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_start_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where it had begun to write; what was there before stays."""

    def fails(options, *given):
        (options.output / "training").mkdir(parents=True)
        raise ValueError("no memory")

    monkeypatch.setattr(serve.train.draft, "_train", fails)
    assert main(command(tmp_path / "out", "--data", "good.jsonl")) == 2
    assert not (tmp_path / "out").exists()
    kept = tmp_path / "kept" / "file"
    kept.parent.mkdir()
    kept.touch()
    assert main(command(tmp_path / "kept", "--data", "good.jsonl")) == 2
    assert list(kept.parent.iterdir()) == [kept]
