"""Name the files of a repository that are downloaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convert.files.safetensors_files import INDEX_FILE, SINGLE_FILE, read_json
from convert.store.files import COPIED

CONFIG = "config.json"
SAMPLING = "generation_config.json"
PREPROCESSOR = "preprocessor_config.json"
MODELOPT = "hf_quant_config.json"
"""ModelOpt's quantisation, which its older checkpoints state here alone."""
TOKENIZER = (
    "tokenizer.json",
    "tiktoken.model",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
NOT_SMALL = ["*/*", *(f"*{suffix}" for suffix in WEIGHT_SUFFIXES)]
"""Patterns of files that are never among the small ones: weights, and files in folders."""


@dataclass(frozen=True)
class Wanted:
    """Small files by name or pattern, and a flag that adds the weights."""

    small: tuple[str, ...]
    weights: bool = False


CHECKPOINT = Wanted(
    (CONFIG, MODELOPT, SAMPLING, PREPROCESSOR, INDEX_FILE, *TOKENIZER), weights=True
)
CONFIG_ALONE = Wanted((CONFIG,))
SAMPLING_ALONE = Wanted((SAMPLING,))
TOKENIZER_ALONE = Wanted((CONFIG, SAMPLING, *TOKENIZER))
CONVERTED = Wanted((INDEX_FILE, *COPIED), weights=True)
ALL_FILES = Wanted(("*",), weights=True)
"""All files, from which a new checkpoint is made."""


def weight_files(directory: Path) -> list[str]:
    """Return the weight files that a directory's index names, or the single file."""
    index = directory / INDEX_FILE
    if not index.is_file():
        return [SINGLE_FILE]
    found: Any = read_json(index).get("weight_map")
    names = set(found.values()) if isinstance(found, dict) else ()
    # Names act as patterns in the hub's library. The reader rejects invalid file names later.
    return sorted(n for n in names if isinstance(n, str) and not set(n) & set("*?[]/"))
