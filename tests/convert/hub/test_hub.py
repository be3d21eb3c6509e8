"""Checkpoints by hub id: what is downloaded, kept, resumed and refused."""

import errno
import hashlib
import os
import shutil
import signal
import time
from collections import namedtuple
from pathlib import Path
from threading import Timer

import pytest
from huggingface_hub import constants
from image_goldens import CHECKPOINT
from like_whole import assert_same_weights
from local_hub import LocalHub
from oracle_files import ORACLES

from convert import Source, load_draft, load_target, load_tokenizer, load_vision
from convert.command_line.stopping import SIGNALS, Stopped, raise_on_signals
from convert.hub.checkpoint import find_checkpoint, find_config
from convert.hub.files import ALL_FILES, TOKENIZER_ALONE
from eagle3_jax.models.target import Target

TARGET = ORACLES / "kimi_bf16"
SLOW = "model-00001-of-000003.safetensors"
SHARD = "model-00002-of-000003.safetensors"


def same_files(found: Path, published: Path) -> bool:
    return all(
        (found / path.name).read_bytes() == path.read_bytes() for path in published.iterdir()
    )


def copied(directory: Path, *others: str) -> Path:
    """The golden target, and other files."""
    shutil.copytree(TARGET, directory)
    for name in others:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(name)
    return directory


def test_an_id_is_downloaded_once_and_later_read_from_the_cache(hub: LocalHub) -> None:
    first = find_checkpoint("org/kimi")
    assert same_files(first, TARGET)
    hub.served.clear()
    assert find_checkpoint("org/kimi") == first
    assert not hub.served


def test_an_existing_directory_wins_over_an_id(hub: LocalHub, tmp_path: Path) -> None:
    (tmp_path / "org" / "kimi").mkdir(parents=True)
    assert find_checkpoint("org/kimi") == Path("org/kimi")
    assert not hub.served


def test_only_the_files_that_are_read_are_downloaded(hub: LocalHub, tmp_path: Path) -> None:
    read = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "tiktoken.model")
    unread = ("pytorch_model.bin", "model.pt", "consolidated.safetensors", "README.md", "code.py")
    below = ("original/config.json", "original/model.safetensors")
    hub.add("org/more", copied(tmp_path / "more", *read, *unread, *below))
    found = find_checkpoint("org/more")
    expected = {*read, *(path.name for path in TARGET.iterdir())}
    assert set(hub.downloaded()) == expected == {path.name for path in found.iterdir()}


def test_a_plan_needs_the_configuration_alone(hub: LocalHub) -> None:
    assert find_config("org/kimi").read_bytes() == (TARGET / "config.json").read_bytes()
    assert hub.downloaded() == ["config.json"]


def test_what_is_published_again_keeps_its_other_small_files(hub: LocalHub, tmp_path: Path) -> None:
    hub.add("org/more", copied(tmp_path / "more", "code.py", "model.bin", "original/code.py"))
    found = {path.name for path in find_checkpoint("org/more", ALL_FILES).iterdir()}
    assert found == {"code.py", *(path.name for path in TARGET.iterdir())}


def test_large_files_that_lie_elsewhere_are_found_with_the_token_and_checked(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.lfs.add(SHARD)
    hub.gated.add("org/kimi")
    monkeypatch.setenv("HF_TOKEN", hub.token)
    found = find_checkpoint("org/kimi")
    assert same_files(found, TARGET)
    digest = hashlib.sha256((TARGET / SHARD).read_bytes()).hexdigest()
    assert (found / SHARD).resolve().name == digest


def test_a_gated_repository_needs_the_token(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add("org/kimi")
    with pytest.raises(OSError, match=r"is gated, and anybody without a token \(HF_TOKEN is not"):
        find_checkpoint("org/kimi")
    monkeypatch.setenv("HF_TOKEN", "hf_of_another_account")
    with pytest.raises(OSError, match=rf"the token in use is barred: .*{hub.endpoint}/org/kimi$"):
        find_checkpoint("org/kimi")
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert same_files(find_checkpoint("org/kimi"), TARGET)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (Source("org/none"), "org/none does not exist: it is no directory, and http.* shows no"),
        (Source("org/kimi", "v9"), "org/kimi has no revision 'v9' at http"),
        (Source("./org/kimi"), "./org/kimi does not exist; a directory or a hub id"),
        (Source("kimi"), "kimi does not exist; a directory or a hub id"),
        (Source(TARGET / "config.json"), "is a file; a checkpoint directory or a hub id"),
    ],
)
def test_what_is_not_there_is_one_line(hub: LocalHub, source: Source, problem: str) -> None:
    with pytest.raises(FileNotFoundError, match=problem) as raised:
        find_checkpoint(source)
    assert "\n" not in str(raised.value)
    assert not hub.downloaded()


def test_offline_the_cache_is_enough(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_checkpoint("org/kimi")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find_checkpoint("org/kimi") == found
    (found / SHARD).unlink()
    with pytest.raises(
        FileNotFoundError, match=r"HF_HUB_OFFLINE is set, and .* does not hold all of org/k"
    ):
        find_checkpoint("org/kimi")
    with pytest.raises(
        FileNotFoundError, match=r"HF_HUB_OFFLINE is set, and .* does not hold all of org/d"
    ):
        find_checkpoint("org/draft")


def test_without_network_the_cache_is_enough(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_checkpoint("org/draft")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert find_checkpoint("org/draft") == found
    with pytest.raises(
        OSError, match=r"http://127.0.0.1:9 can't be reached \(.*\), and .*cache does not"
    ):
        find_checkpoint("org/kimi", TOKENIZER_ALONE)


def test_a_disk_that_is_too_small_is_said_before_the_weights(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100_000))
    with pytest.raises(OSError, match=r"0.00 GiB free; --download-dir or HF_HOME names another"):
        find_checkpoint("org/kimi")
    assert not [name for name in hub.downloaded() if name.endswith(".safetensors")]


def test_a_disk_that_fills_up_is_one_line(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/cache/blob")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    with pytest.raises(OSError, match=r"the disk of .*cache is full; --download-dir or HF_HOME"):
        find_checkpoint("org/kimi")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_waits_for_no_file(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.slow.add(SLOW)  # 14 s
    if number == signal.SIGTERM:
        hub.lfs.add(SLOW)
    with raise_on_signals():  # As commands do.
        handler, start = signal.getsignal(number), time.monotonic()
        Timer(1.0, os.kill, (os.getpid(), number)).start()
        with pytest.raises(Stopped) as stopped:
            find_checkpoint("org/kimi")
        assert signal.getsignal(number) == handler
    assert time.monotonic() - start < 5
    assert stopped.value.number == number


DRAFT = ORACLES / "draft_mha_fp8_ptpc"


def test_weights_are_the_directorys(hub: LocalHub, target: Target) -> None:
    by_id = load_target("org/kimi")
    assert_same_weights(by_id, target)
    hub.add("org/draft", ORACLES / "draft_mha_bf16")
    hub.add("org/draft", DRAFT, "fp8")
    draft = load_draft(Source("org/draft", "fp8"), by_id)
    assert_same_weights(draft, load_draft(DRAFT, target))


def test_vision_is_loaded_of_a_revision_into_the_directory_that_is_asked_for(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.add("org/kimi", CHECKPOINT, "vision")
    vision = load_vision(Source("org/kimi", "vision", str(tmp_path / "elsewhere")))
    assert_same_weights(vision, load_vision(CHECKPOINT))
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
