"""The engine's options, for every command that builds an engine.

A row whose name is a field of EngineConfig becomes an option of the engine. EngineConfig checks
values and combinations.
"""

import argparse
import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from convert.command_line.options import add_options, flags_of, option
from convert.files.json_object import parse_value
from eagle3_jax.engine.config import EngineConfig, KVScales
from serve.images.options import ImageEngineFlags
from serve.options.memory import OffloadingFlags
from serve.options.parallel import ContextFlags, ParallelOptions
from serve.options.speculation import Speculation, TreeFlags, add_speculation_flags

POOLS = ("target", "draft")
MEASURED = "measured"


def _default(field: str) -> str:
    return f"; default {getattr(EngineConfig, field)}"


@dataclass(frozen=True)
class EngineFlags:
    """Options of EngineConfig; those that are not given are None and have its defaults."""

    max_model_len: int | None = option(
        "--max-model-len, --context-length N",
        "tokens of prompt + answer" + _default("max_model_len"),
        int,
    )
    max_num_seqs: int | None = option(
        "--max-num-seqs, --max-running-requests N",
        "requests decoded together" + _default("max_num_seqs"),
        int,
    )
    page_size: int | None = option(
        "--block-size, --page-size N", "tokens of a cache page" + _default("page_size"), int
    )
    num_pages: int | None = option(
        "--num-gpu-blocks-override N",
        "pages of the KV cache; default: as many as --max-num-seqs requests of full length need",
        int,
    )
    prefill_chunk: int | None = option(
        "--max-num-batched-tokens, --chunked-prefill-size N",
        "prompt tokens per prefill chunk" + _default("prefill_chunk"),
        int,
    )
    kv_cache_dtype: str = option(
        "--kv-cache-dtype",
        "auto: as the model computes; fp8: e4m3, half the memory of bfloat16",
        default="auto",
        choices=("auto", "bfloat16", "fp8", "fp8_e4m3"),
    )
    kv_cache_scale: str | None = option(
        "--kv-cache-scale FILE|X",
        "scales of an fp8 cache: FILE, one a pool (eagle3-bench accept MODEL --draft DRAFT "
        "--measure-kv-scales FILE); or X for all pools",
    )
    kernels: str = option(
        "--kernels",
        "implementation of operations; auto: pallas on GPUs, xla on CPU",
        default="auto",
        choices=("auto", "pallas", "xla", "reference"),
    )
    xla_kernels: tuple[str, ...] = option(
        "--xla-kernels NAME,...",
        "operations that run without their kernel, as eagle3-bench doctor may advise",
        lambda text: tuple(text.split(",")),
        default=(),
    )
    xla_autotune: bool = option(
        "--xla-autotune",
        "let XLA time its own kernels on the GPU and keep the fastest; programs, and with them "
        "last bits, may then differ between starts",
    )
    enable_prefix_caching: bool = option(
        "--enable-prefix-caching",
        "reuse cached pages of prompts that begin with the same tokens (the default)",
        default=True,
        action=argparse.BooleanOptionalAction,
    )
    disable_radix_cache: bool = option(
        "--disable-radix-cache",
        default=argparse.SUPPRESS,
        action="store_false",
        dest="enable_prefix_caching",
    )
    exact: bool = option("--exact", "make answers equal to plain decoding bit for bit")


TABLES = (EngineFlags, OffloadingFlags, ImageEngineFlags, ContextFlags, ParallelOptions)
FLAGS = {
    **{name: flag for name, flag in flags_of(*TABLES).items() if "_" in name},
    **{name.removeprefix("speculative_"): flag for name, flag in flags_of(TreeFlags).items()},
    "adaptive": "--adaptive",
    "exact mode": "--exact",
}
"""Names in EngineConfig's errors -> flags of the command line."""


def add_engine_flags(parser: argparse.ArgumentParser, *, keys: bool = False) -> None:
    """Add the groups "speculation" and "engine"; `keys` as in `add_speculation_flags`."""
    add_speculation_flags(parser, keys=keys)
    add_options(parser.add_argument_group("engine"), EngineFlags)


def read_engine_config(flags: argparse.Namespace, speculation: Speculation) -> EngineConfig:
    """Build the engine's configuration; options that are not given have EngineConfig's defaults.

    Raises ValueError, naming the flag, for values that cannot work.
    """
    found = {field.name: getattr(flags, field.name, None) for field in fields(EngineConfig)}
    found |= speculation.engine
    found["kv_cache_dtype"] = flags.kv_cache_dtype.removesuffix("_e4m3")
    if flags.kv_cache_scale is not None:
        found["kv_cache_scale"] = _read_scale(flags.kv_cache_scale)
    given = {name: value for name, value in found.items() if value not in (None, "auto")}
    try:
        return EngineConfig(**given)
    except ValueError as error:
        raise ValueError(under_flags_names(str(error))) from error


def under_flags_names(message: str) -> str:
    """Rewrite `page_size must be ...` as `--block-size must be ...`."""
    names = "|".join(sorted(FLAGS, key=len, reverse=True))
    return re.sub(rf"(?<![\w-])({names})(?!\w)", lambda found: FLAGS[found[1]], message)


def _read_scale(given: str) -> float | KVScales:
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


def read_kv_scales(path: Path) -> KVScales:
    """Read the factors of a file {"target": [...], "draft": [...]}; `measured` is ignored.

    Raises ValueError, naming the file, for other content, and OSError if it cannot be read.
    """
    try:
        found = parse_value(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict) or set(found) - {MEASURED} != set(POOLS):
        raise ValueError(
            f"{path} must be a JSON object with the lists `target` and `draft`, as "
            "eagle3-bench accept --measure-kv-scales writes it"
        )
    lists = (found[name] for name in POOLS)
    if not all(isinstance(it, list) and {*map(type, it)} <= {int, float} for it in lists):
        raise ValueError(f"{path}: target and draft must be lists of numbers, one for each KV pool")
    try:
        return KVScales(tuple(found["target"]), tuple(found["draft"]))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_kv_scales(path: Path, scales: KVScales, measured: dict[str, Any]) -> None:
    """Write the file; `measured` describes the measurement."""
    content = {"target": scales.target, "draft": scales.draft, MEASURED: measured}
    path.write_text(json.dumps(content, indent=2) + "\n")
