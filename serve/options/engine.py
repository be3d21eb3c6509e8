"""The engine's options as flags, for every command that builds an engine.

A flag whose `dest` is a field of EngineConfig becomes an option of the engine; a new one needs
nothing else. EngineConfig checks values and combinations.
"""

import argparse
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from eagle3_jax.engine.config import EngineConfig, KVScales
from serve.options.kv_scale_file import read_kv_scales
from serve.options.speculation import Speculation, add_speculation_flags

KV_CACHE_DTYPES = ("auto", "bfloat16", "fp8", "fp8_e4m3")
KERNELS = ("auto", "pallas", "xla", "reference")
HOW_TO_MEASURE = "eagle3-bench accept MODEL --draft DRAFT --measure-kv-scales FILE"
COUNTS = {
    "max_model_len": ("tokens of prompt + answer", "--max-model-len", "--context-length"),
    "max_num_seqs": ("requests decoded together", "--max-num-seqs", "--max-running-requests"),
    "page_size": ("tokens a cache page holds", "--block-size", "--page-size"),
    "num_pages": ("pages of the KV cache", "--num-gpu-blocks-override"),
    "prefill_chunk": (
        "prompt tokens a chunk",
        "--max-num-batched-tokens",
        "--chunked-prefill-size",
    ),
}
"""Fields that are counts -> their meaning and flags."""
FLAGS = {
    "adaptive": "--adaptive",
    "data_parallel_size": "--data-parallel-size",
    "decode_context_parallel_size": "--decode-context-parallel-size",
    "eagle_topk": "--speculative-eagle-topk",
    "exact mode": "--exact",
    "kv_cache_dtype": "--kv-cache-dtype",
    "kv_cache_scale": "--kv-cache-scale",
    "kv_offloading_bytes": "--kv-offloading-size",
    "kv_offloading_least_tokens": "--kv-offloading-min-tokens",
    "kv_offloading_dir": "--kv-offloading-dir",
    "kv_offloading_dir_bytes": "--kv-offloading-dir-size",
    "mm_draft_embedding": "--mm-draft-embedding",
    "mm_encoder_cache_tokens": "--mm-encoder-cache-tokens",
    "mm_encoder_tp_mode": "--mm-encoder-tp-mode",
    "num_draft_tokens": "--speculative-num-draft-tokens",
    "xla_kernels": "--xla-kernels",
    **{field: flag for field, (_, flag, *_) in COUNTS.items()},
}
"""Names in EngineConfig's errors -> flags of the command line."""


def add_engine_flags(parser: argparse.ArgumentParser, *, keys: bool = False) -> None:
    """Add the groups "speculation" and "engine"; `keys` as in `add_speculation_flags`."""
    add_speculation_flags(parser, keys=keys)
    group = parser.add_argument_group("engine")
    for field in COUNTS:
        add_count_flag(group, field)
    add_cache_dtype_flag(group)
    add_scale_flag(group)
    group.add_argument(
        "--kernels",
        choices=KERNELS,
        default="auto",
        help="how operations run; auto: pallas on GPUs, xla on CPU",
    )
    add_xla_kernels_flag(group)
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="reuse the cache pages of prompts that began alike (the default)",
    )
    group.add_argument(
        "--disable-radix-cache",
        action="store_false",
        dest="enable_prefix_caching",
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )
    group.add_argument("--exact", action="store_true", help="same bits as plain decoding")


def read_engine_config(flags: argparse.Namespace, speculation: Speculation) -> EngineConfig:
    """Build the engine's configuration; sizes that are not given are EngineConfig's defaults.

    Raises ValueError, naming the flag, for values that cannot work.
    """
    found = {field.name: getattr(flags, field.name, None) for field in fields(EngineConfig)}
    found |= speculation.engine
    found["kv_cache_dtype"] = flags.kv_cache_dtype.removesuffix("_e4m3")
    if flags.kv_cache_scale is not None:
        found["kv_cache_scale"] = read_scale(flags.kv_cache_scale)
    given = {name: value for name, value in found.items() if value not in (None, "auto")}
    try:
        return EngineConfig(**given)
    except ValueError as error:
        raise ValueError(under_flags_names(str(error))) from error


def add_count_flag(parser: Any, field: str) -> None:
    """Add the flag of a field of COUNTS to a parser or group."""
    meaning, *names = COUNTS[field]
    default = getattr(EngineConfig, field) or "what that many requests of full length need"
    text = f"{meaning}; default {default}"
    parser.add_argument(*names, type=int, metavar="N", dest=field, help=text)


def add_cache_dtype_flag(parser: Any) -> None:
    """Add --kv-cache-dtype to a parser or group."""
    parser.add_argument(
        "--kv-cache-dtype",
        choices=KV_CACHE_DTYPES,
        default="auto",
        help="auto: as the model computes; fp8: e4m3, half the memory of bfloat16",
    )


def add_xla_kernels_flag(parser: Any) -> None:
    """Add --xla-kernels to a parser or group."""
    parser.add_argument(
        "--xla-kernels",
        type=lambda text: tuple(text.split(",")),
        default=(),
        metavar="NAME,...",
        help="operations that run without their kernel, as eagle3-bench doctor may advise",
    )


def add_scale_flag(parser: Any) -> None:
    """Add --kv-cache-scale to a parser or group."""
    parser.add_argument(
        "--kv-cache-scale",
        metavar="FILE|X",
        help=f"factors of an fp8 cache: FILE, one a pool ({HOW_TO_MEASURE}); or X for all pools",
    )


def read_scale(given: str) -> float | KVScales:
    """Return a number, or the factors in a file; ValueError for anything else."""
    try:
        return float(given)
    except ValueError:
        pass
    try:
        return read_kv_scales(Path(given))
    except OSError as error:
        raise ValueError(
            "--kv-cache-scale must be a number or a file that can be read; "
            f"{given}: {error.strerror}"
        ) from error


def under_flags_names(message: str) -> str:
    """Rewrite `page_size must be ...` as `--block-size must be ...`."""
    names = "|".join(sorted(FLAGS, key=len, reverse=True))
    return re.sub(rf"(?<![\w-])({names})(?!\w)", lambda found: FLAGS[found[1]], message)
