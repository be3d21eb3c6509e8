"""Sampling defaults of a checkpoint's authors: generation_config.json, read as vLLM does."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convert.files.json_object import parse_value
from convert.hub.checkpoint import find_checkpoint
from convert.hub.files import SAMPLING, SAMPLING_ALONE
from eagle3_jax.sampling.params import REQUEST_OPTIONS, SamplingParams

NAMES = {
    row.generation_config: name
    for name, row in REQUEST_OPTIONS.items()
    if row.generation_config is not None
}


@dataclass(frozen=True)
class SamplingDefaults:
    """`options` are SamplingParams fields for requests that leave them out."""

    options: dict[str, Any] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()


def read_sampling_defaults(directory: Path) -> SamplingDefaults:
    """Reads the file, if there is one; ValueError when it isn't what it should be."""
    path = directory / SAMPLING
    if not path.is_file():
        return SamplingDefaults()
    config, options = _parse(path.read_text(encoding="utf-8"), str(path))
    eos = config.get("eos_token_id")
    eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
    return SamplingDefaults(options, eos_ids)


def choose_defaults(
    source: str, overrides: str | None
) -> Callable[[SamplingDefaults], dict[str, Any]]:
    """What the server's flags make of a checkpoint's defaults.

    source: auto, vllm for none of them, or the directory or hub id of another file. overrides: JSON
    with the file's names. ValueError where there is no file, and for what it may not say.
    """
    given: dict[str, Any] = {}
    if source not in ("auto", "vllm"):
        directory = find_checkpoint(source, SAMPLING_ALONE)
        if not (directory / SAMPLING).is_file():
            raise ValueError(
                f"--generation-config: {source} holds no {SAMPLING}; or say auto or vllm"
            )
        given = read_sampling_defaults(directory).options
    over = {} if overrides is None else _parse(overrides, "--override-generation-config")[1]
    return lambda found: {**(found.options if source == "auto" else given), **over}


def _parse(text: str, origin: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The file's content, and its sampling options under our names."""
    try:
        config = parse_value(text)
        options = {NAMES[k]: v for k, v in config.items() if k in NAMES and v is not None}
        SamplingParams(**options)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{origin}: {error}") from error
    return config, options
