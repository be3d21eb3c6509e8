"""Published command lines with eagle3-serve in the place of the other server."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import yaml
from called_tools import MARKS
from local_hub import local_hub
from oracle_files import ORACLES

from convert.files.safetensors_files import SINGLE_FILE, open_checkpoint
from convert.quantize.run import prepare, write
from convert.quantize.schemes import scheme_of
from convert.save import write_tensors
from convert.store.parameters import Parameter
from eagle3_tools.bench.load.server_process import serving
from serve.demo import find_pair
from serve.options.foreign import describe_ignored_flags, describe_ignored_variables
from serve.options.parallel import ONE_DEVICE
from serve.options.serve_flags import parse_serve_flags
from serve.pair.loading import fit_length, load_pair

SERVERS = re.compile(
    r"(vllm serve|python3? -m sglang\.launch_server|python3? -m atom\.entrypoints\.openai_server) "
)
MORE_EXPERTS, WIDER = 2, 4


@dataclass(frozen=True)
class Published:
    """A command line, where it is from, and the environment that is exported before it."""

    source: str
    line: str
    exported: str = ""

    @property
    def arguments(self) -> list[str]:
        """Arguments for eagle3-serve in the place of the other server."""
        words, found = SERVERS.subn("", self.line.replace("\\\n", " "))
        assert found == 1, self.line
        return shlex.split(words)

    @property
    def environment(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self.exported.split())


COMMANDS = [
    Published(**fields)
    for fields in yaml.safe_load(
        Path(__file__).with_name("published_commands.yaml").read_text(encoding="utf-8")
    )
]
EAGLE3_FP8_CARD = COMMANDS[0]
(MINIMAX_EAGLE3,) = (c for c in COMMANDS if "minimaxm2.5_fp8_mi355x_vllm_eagle3" in c.source)
CHECKPOINTS = {
    "moonshotai/Kimi-K2.5": "kimi_int4_ct",
    "amd/Kimi-K2.5-MXFP4": "kimi_mxfp4_quark",
    "amd/Kimi-K2.5-W4A8": "kimi_w4a8_quark",
    "MiniMaxAI/MiniMax-M2.5": "minimax_fp8block",
    "amd/kimi-k2.5-eagle3-fp8": "draft_mha_fp8_ptpc",
    "lightseekorg/kimi-k2.5-eagle3": "draft_mha_bf16",
    "lightseekorg/kimi-k2.5-eagle3-mla": "draft_mla_bf16",
    "ginsongsong/eagle3-kimik2.5-w4a8": "draft_mha_int4_pc",
    "thoughtworks/MiniMax-M2.5-Eagle3": "draft_minimax_bf16",
}
"""Published ids -> tiny checkpoints of the same form, by third parties."""


class Repeated(NamedTuple):
    """The dimension that is repeated, and how often, of tensors with such names."""

    names: re.Pattern[str]
    dimension: int
    times: int


def widened(directory: Path, into: Path) -> Path:
    """Writes a wider copy of a checkpoint; its other files are left out."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config", config)
    heads = 16 // text["num_key_value_heads"] // 2
    _multiply(text, heads, "num_attention_heads", "num_key_value_heads")
    _multiply(text, WIDER, "intermediate_size", "moe_intermediate_size")
    _multiply(text, MORE_EXPERTS, "n_routed_experts", "num_local_experts")
    into.mkdir(parents=True)
    (into / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_tensors(into / SINGLE_FILE, _wider_tensors(directory, heads))
    return into


def _multiply(config: dict[str, int], times: int, *names: str) -> None:
    config |= {name: config[name] * times for name in names if name in config}


def _wider_tensors(directory: Path, heads: int) -> list[Parameter]:
    checkpoint = open_checkpoint(directory)
    arrays = {name: _wider(name, checkpoint.read(name), heads) for name in checkpoint.tensors}
    for name in [name for name in arrays if ".experts." in name]:
        before, number, after = re.split(r"(?<=\.experts\.)(\d+)", name)
        count = sum(f"{before}{n}{after}" in checkpoint.tensors for n in range(64))
        for copy in range(1, MORE_EXPERTS):
            arrays[f"{before}{int(number) + copy * count}{after}"] = arrays[name]
    return [Parameter(n, a.shape, a.dtype, partial(np.array, a)) for n, a in sorted(arrays.items())]


def _wider(name: str, array: np.ndarray, heads: int) -> np.ndarray:
    rules = (
        Repeated(re.compile(r"self_attn\.([qkv]|q_b|kv_b)_(proj|norm)\."), 0, heads),
        Repeated(re.compile(r"self_attn\.o_proj\."), 1, heads),
        Repeated(re.compile(r"\.(gate_proj|up_proj|w1|w3)\."), 0, WIDER),
        Repeated(re.compile(r"\.(down_proj|w2)\."), 1, WIDER),
        Repeated(re.compile(r"\.gate\.|e_score_correction_bias"), 0, MORE_EXPERTS),
    )
    for rule in rules:
        if rule.names.search(name) is None:
            continue
        if name.endswith("weight_shape"):
            array[rule.dimension] *= rule.times
        elif array.ndim > rule.dimension:  # Scales of whole rows or tensors stay.
            array = np.concatenate([array] * rule.times, axis=rule.dimension)
    return array


AS_BY_DEFAULT = {
    ("--port", "8000"),
    ("--block-size", "16"),
    ("--block-size=16",),
    ("--speculative-num-steps", "3"),
    ("--speculative-eagle-topk", "1"),
    ("--mm-encoder-tp-mode", "data"),
}
"""Flags of these lines that say what is so without them."""
EIGHT_DEVICES = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0",
}
SHORT = ("--max-model-len", "1024", "--max-num-seqs", "16")
"""CPU devices tell no memory of which the cache would be a share, so that it holds as many requests
of this length as may run; and all of them have this machine's, where 512 requests take 11 GB."""
LOADED = (EAGLE3_FP8_CARD, MINIMAX_EAGLE3)
"""Whose pairs are loaded without --long; other tests load the forms of the others."""
each = partial(pytest.mark.parametrize, ids=lambda command: command.source)


def flags_of(command: Published) -> Iterator[tuple[int, int]]:
    """Yield where each flag begins and ends, its values included."""
    words = command.arguments
    starts = [i for i, word in enumerate(words) if word.startswith("-")]
    yield from zip(starts, [*starts[1:], len(words)], strict=True)


@each("command", COMMANDS)
def test_every_flag_is_obeyed_or_its_line_says_what_it_means(
    command: Published, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.arguments
    options, without_effect = parse_serve_flags(words)
    assert len(list(describe_ignored_flags(without_effect))) == len(without_effect)
    for start, end in flags_of(command):
        flag, others = tuple(words[start:end]), [*words[:start], *words[end:]]
        if flag in AS_BY_DEFAULT:
            continue
        try:
            left, left_without_effect = parse_serve_flags(others)
        except SystemExit:
            continue  # What is left is another command, or none.
        assert (left != options) != (left_without_effect != without_effect), flag


@each("command", [command for command in COMMANDS if command.exported])
def test_every_variable_is_named(command: Published) -> None:
    lines = describe_ignored_variables(command.environment)
    named = [name for line in lines for name in line.rpartition(": ")[2].split(", ")]
    assert sorted(named) == sorted(command.environment)


def tokenizer_with_marks(into: Path) -> Path:
    """With those of thinking and calls in place of reserved tokens."""
    shutil.copytree(ORACLES / "tokenizer", into)
    file = into / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    entries = config["added_tokens_decoder"].values()
    reserved = [entry for entry in entries if "reserved" in entry["content"]]
    for entry, mark in zip(reserved, ("<think>", "</think>", *MARKS), strict=False):
        entry |= {"content": mark, "special": False}
    file.write_text(json.dumps(config), encoding="utf-8")
    return into


@pytest.fixture(scope="module")
def published_hub(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """A hub with the published ids; the variables with which other processes find it."""
    into = tmp_path_factory.mktemp("published")
    tokenizer = tokenizer_with_marks(into / "tokenizer")
    places = {name: ORACLES / found for name, found in CHECKPOINTS.items()}
    if request.config.getoption("--long"):
        mxfp4 = places["amd/MiniMax-M2.5-MXFP4"] = into / "minimax_mxfp4"
        write(prepare(ORACLES / "minimax_bf16", mxfp4, scheme_of("mxfp4", None)))
    else:
        places = {n: p for n, p in places.items() if any(n in c.line for c in LOADED)}
    with local_hub(into / "cache") as hub:
        for name, directory in places.items():
            whole = widened(directory, into / name)
            shutil.copytree(tokenizer, whole, dirs_exist_ok=True)
            hub.add(name, whole)
        yield {"HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(into / "cache")}


@each(
    "command",
    [*LOADED, *(pytest.param(c, marks=pytest.mark.long) for c in COMMANDS if c not in LOADED)],
)
def test_the_pair_of_the_published_ids_is_loaded(command: Published, published_hub: Any) -> None:
    options, _ = parse_serve_flags(command.arguments)
    found = find_pair(options)
    pair = load_pair(
        found.target,
        found.draft,
        options.load,
        ONE_DEVICE,
        tokenizer=found.tokenizer,
        configure=lambda target, _: fit_length(options.engine, options.max_model_len, target),
    )
    assert pair.config is not None
    assert (pair.draft is not None) == (pair.config.num_speculative_tokens > 0)
    assert options.max_model_len in (None, pair.config.max_model_len)


@pytest.mark.long
@each("command", COMMANDS)
def test_a_server_starts_on_as_many_devices_and_answers(
    command: Published,
    published_hub: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    variables = {**command.environment, **published_hub, **EIGHT_DEVICES}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    log = tmp_path / "log"
    try:
        with serving([*command.arguments, *SHORT], log) as (_, url):
            body = {"prompt": "Hello", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=300)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 12
    finally:
        print(log.read_text(errors="replace"))
