"""Tiny checkpoints of the published forms with as many heads, columns and experts as 8 devices
share: each part of a tensor that they split is there several times."""

import json
import re
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from convert.files.safetensors_files import SINGLE_FILE, open_checkpoint
from convert.save import write_tensors
from convert.store.parameter import Parameter

MORE_EXPERTS, WIDER = 2, 4


class Repeated(NamedTuple):
    """Of tensors with such names, the dimension that is there so many times."""

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
