"""Sampling defaults of a checkpoint's authors: generation_config.json, read as vLLM does."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3_jax.sampling_params import SamplingParams

FILE = "generation_config.json"
NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


@dataclass(frozen=True)
class SamplingDefaults:
    """`options` are SamplingParams fields for requests that leave them out."""

    options: dict[str, Any] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()


def read_sampling_defaults(directory: Path) -> SamplingDefaults:
    """Reads the file, if there is one; ValueError when it isn't what it should be."""
    path = directory / FILE
    if not path.is_file():
        return SamplingDefaults()
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        options = {NAMES[k]: v for k, v in config.items() if k in NAMES and v is not None}
        SamplingParams(**options)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from error
    eos = config.get("eos_token_id")
    eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
    return SamplingDefaults(options, eos_ids)
