"""One group of flags makes the engine's configuration for every command, without importing JAX;
--kv-cache-scale is a number, or a file that is read as it was written."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from eagle3_jax.engine import EngineConfig, KVScales
from serve.generate.flags import parse_generate_flags
from serve.options.engine import read_kv_scales, write_kv_scales
from serve.options.serve_flags import parse_serve_flags

SPECULATION = {
    "model": "d",
    "num_speculative_tokens": 2,
    "draft_sample_method": "greedy",
    "num_speculative_tokens_per_batch_size": [[1, 4, 2], [5, 8, 0]],
}
EVERYTHING = ["m", "--speculative-config", json.dumps(SPECULATION), "--max-model-len", "256"]
EVERYTHING += ["--max-num-seqs", "6", "--block-size", "8", "--num-gpu-blocks-override", "199"]
EVERYTHING += ["--max-num-batched-tokens", "32", "--kv-cache-dtype", "fp8_e4m3"]
EVERYTHING += ["--xla-kernels", "mla_decode,route", "--xla-autotune", "-tp", "4", "-dcp", "2"]
EVERYTHING += ["--kv-cache-scale", "0.5", "--kernels", "xla", "--no-enable-prefix-caching"]
TREE = ["--speculative-algorithm", "EAGLE3", "--speculative-eagle-topk", "4"]
TREE += ["--speculative-num-draft-tokens", "12"]
OFFLOADING = ["--kv-offloading-size", "0.5", "--kv-offloading-min-tokens", "64"]
OFFLOADING += ["--kv-offloading-dir", "pages", "--kv-offloading-dir-size", "2"]
REPLICAS = ["--data-parallel-size", "2", "--enable-expert-parallel"]
IMAGES = ["--mm-draft-embedding", "target", "--mm-encoder-cache-tokens", "9"]
IMAGES += ["--mm-encoder-tp-mode", "weights"]
NO_FLAG = {"batch_buckets", "enable_structured_outputs"}
"""Fields that commands set themselves."""
OF_IMAGES = {"mm_draft_embedding", "mm_encoder_cache_tokens", "mm_encoder_tp_mode"}
"""Flags of the server alone: the other takes no images."""


def serve(*argv: str) -> EngineConfig:
    return parse_serve_flags(argv)[0].engine


def generate(*argv: str) -> EngineConfig:
    return parse_generate_flags([*argv, "--prompt", "a"]).engine


COMMANDS = pytest.mark.parametrize("parse", [serve, generate])


@COMMANDS
def test_every_option_of_the_engine_is_a_flag_of_every_command(parse: Any) -> None:
    assert parse(*EVERYTHING) == EngineConfig(
        num_speculative_tokens=2,
        draft_sample_method="greedy",
        num_speculative_tokens_per_batch_size=((1, 4, 2), (5, 8, 0)),
        max_model_len=256,
        max_num_seqs=6,
        page_size=8,
        num_pages=199,
        prefill_chunk=32,
        kv_cache_dtype="fp8",
        kv_cache_scale=0.5,
        kernels="xla",
        xla_kernels=("mla_decode", "route"),
        xla_autotune=True,
        enable_prefix_caching=False,
        decode_context_parallel_size=2,
    )
    assert parse("--demo", "--adaptive").adaptive and parse("--demo", "--exact").exact
    assert parse("--demo") == EngineConfig(), "the defaults are the engine's"


@COMMANDS
def test_no_field_of_the_configuration_is_without_a_flag(parse: Any) -> None:
    """A new field fails here until a flag has its name as `dest`, or a key of the JSON has it."""
    read: set[str] = set()
    argvs = [EVERYTHING, ["--demo", "--adaptive", *TREE[:2]], ["--demo", "--exact"]]
    argvs += [["--demo", *TREE], ["--demo", *OFFLOADING], ["--demo", *REPLICAS]]
    argvs += [["--demo", "--speculative-config", json.dumps({"prompt_lookup_max": 4})]]
    argvs += [["--demo", *IMAGES]] if parse is serve else []
    for argv in argvs:
        try:
            config = parse(*argv)
        except SystemExit as error:
            raise AssertionError(f"{argv} is refused") from error
        read |= {f.name for f in fields(EngineConfig) if getattr(config, f.name) != f.default}
    synthetic = {"rejection_sample_method", "synthetic_acceptance_length"}
    synthetic |= {"synthetic_acceptance_rates"}
    with_default = {f.name for f in fields(EngineConfig) if f.default is not MISSING}
    no_flag = NO_FLAG | (set() if parse is serve else OF_IMAGES)
    assert with_default - read == no_flag | synthetic


def test_keys_of_the_json_are_flags_of_generate() -> None:
    config = {"model": "d", "num_speculative_tokens": 5, "rejection_sample_method": "block"}
    config["draft_sample_method"] = "greedy"
    flags = ["--draft", "d", "--num-speculative-tokens", "5"]
    flags += ["--rejection-sample-method", "block", "--draft-sample-method", "greedy"]
    said = generate("m", "--speculative-config", json.dumps(config))
    assert generate("m", *flags) == said


def test_keys_of_lookup_have_vllms_names_and_defaults() -> None:
    def found(**keys: Any) -> tuple[int, ...]:
        engine = serve("--demo", "--speculative-config", json.dumps(keys))
        lookup = engine.prompt_lookup_min, engine.prompt_lookup_max, engine.num_lookup_tokens
        return engine.num_speculative_tokens, *lookup

    assert found() == (3, 3, 6, 0)
    assert found(method="eagle3", num_lookup_tokens=6) == (3, 3, 6, 6)
    assert found(method="eagle3", prompt_lookup_max=4, prompt_lookup_min=2) == (3, 2, 4, 8)
    assert found(method="ngram", num_speculative_tokens=5, prompt_lookup_max=4) == (0, 4, 4, 5)
    assert found(method="ngram", prompt_lookup_min=2) == (0, 2, 2, 8)
    assert found(method="ngram") == (0, 5, 5, 8)


@pytest.mark.parametrize(
    "more, naming",
    [
        (["--kv-offloading-size", "0"], "must be a number above 0; got 0"),
        (["--kv-offloading-size", "1", "--no-enable-prefix-caching"], "prefix cache, which is off"),
        (["--kv-offloading-size", "1", "--kv-offloading-backend", "lmcache"], "choose from"),
        (["-tp", "4", "-dcp", "3"], "must divide --tensor-parallel-size 4; got 3"),
        (["--speculative-config", '{"model": "d"}'], "leave out --draft"),
        (TREE, "SGLang's flags and --draft"),
    ],
)
def test_speculation_is_said_in_one_way(
    more: list[str], naming: str, mistake: Callable[..., str]
) -> None:
    assert naming in mistake(generate, "m", "--draft", "d", *more)


@pytest.mark.parametrize(
    "argv, naming",
    [
        (["--block-size", "0"], "--block-size must be at least 1"),
        (["--max-num-batched-tokens", "0"], "--max-num-batched-tokens must be at least 1"),
        (["--num-gpu-blocks-override", "1"], "--num-gpu-blocks-override must be at least"),
        (["--max-model-len", "1"], "--max-model-len must be at least 2"),
        (["--xla-kernels", "route,mla"], "--xla-kernels must be among absorb_query, add_norm, "),
        (
            ["--exact", "--adaptive"],
            "--exact needs the same k in every round: leave --adaptive out",
        ),
    ],
)
@COMMANDS
def test_the_engines_errors_name_flags(
    parse: Any, argv: list[str], naming: str, mistake: Callable[..., str]
) -> None:
    assert naming in mistake(parse, "--demo", *argv)


@pytest.mark.parametrize(
    "module, mistake",
    [("serve.cli", [*EVERYTHING, "--port", "-1"]), ("serve.generate.cli", ["m", "--nonsense"])],
)
def test_help_and_mistakes_do_not_wait_for_jax(module: str, mistake: list[str]) -> None:
    code = (
        f"import sys, {module} as command\n"
        f"for argv, expected in ((['--help'], 0), ({mistake!r}, 2)):\n"
        "    try: command.main(argv)\n"
        "    except SystemExit as left: assert (left.code or 0) == expected, left.code\n"
        "heavy = {'jax', 'jaxlib', 'numpy', 'torch', 'fastapi', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SCALES = KVScales((0.5, 0.25), (0.1, 3.0))
FP8 = ["--demo", "--kv-cache-dtype", "fp8", "--kv-cache-scale"]


def test_a_written_file_is_what_the_flag_reads(tmp_path: Path) -> None:
    path = tmp_path / "factors.json"
    write_kv_scales(path, SCALES, {"prompts": 3})
    assert serve(*FP8, f"{path}").kv_cache_scale == SCALES == read_kv_scales(path)
    assert serve(*FP8, "0.5").kv_cache_scale == 0.5


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not valid JSON"),
        ([1, 2], "must be a JSON object with the lists"),
        ({"target": [1.0]}, "must be a JSON object with the lists"),
        ({"target": [1.0], "draft": [], "other": 1}, "must be a JSON object with the lists"),
        ({"target": 1.0, "draft": []}, "must be lists of numbers"),
        ({"target": ["1"], "draft": []}, "must be lists of numbers"),
        ({"target": [True], "draft": []}, "must be lists of numbers"),
        ({"target": [1.0, 0.0], "draft": []}, "must be positive and finite, got 0.0"),
        ({"target": [float("inf")], "draft": []}, "must be positive and finite, got inf"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, content: Any, said: str) -> None:
    path = tmp_path / "factors.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=said) as error:
        read_kv_scales(path)
    assert f"{path}" in f"{error.value}"


def test_without_a_factor_the_server_takes_1_and_offline_generation_refuses(
    mistake: Callable[..., str],
) -> None:
    assert serve(*FP8[:-1]).kv_cache_scale == 1.0
    assert "fp8 needs --kv-cache-scale: measured scales" in mistake(generate, *FP8[:-1])
