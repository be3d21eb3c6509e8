"""Quantise one directory into another, which appears complete or not at all."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convert.files.safetensors_files import INDEX_FILE, open_checkpoint, read_json
from convert.hub.files import WEIGHT_SUFFIXES
from convert.published.exclude import REGEX
from convert.quantize.metadata import with_quantization, written_excludes
from convert.quantize.plan import Advance, QuantizePlan, make_quantize_plan, write_files
from convert.quantize.schemes import Quantizer
from convert.quantize.select import ExcludeStyle, select

CONFIG_FILE = "config.json"
LARGEST_COPY = 1 << 28
"""Tokenizers and remote code are smaller. A larger file holds weights in another format."""


@dataclass(frozen=True)
class Job:
    """One quantisation, checked and ready to be written."""

    plan: QuantizePlan
    config: dict[str, Any]
    excludes: tuple[str, ...]
    destination: Path
    copied: tuple[Path, ...]


def prepare(
    source: Path,
    destination: Path,
    scheme: Quantizer,
    *,
    exclude: Sequence[str] | None = None,
    exclude_style: ExcludeStyle = "regex",
    vision: bool = False,
) -> Job:
    """Read headers and config.json and check the quantisation, without writing.

    `exclude` lists patterns of modules to keep (`convert.published.exclude`); None: the scheme's
    own. Raises FileNotFoundError, FileExistsError or ValueError for every problem known by now.
    """
    refuse_occupied(destination)
    checkpoint = open_checkpoint(source)
    selection = select(checkpoint, scheme.name, exclude, vision=vision)
    plan = make_quantize_plan(checkpoint, scheme, selection)
    excludes = written_excludes(scheme, selection, exclude_style)
    try:
        config = with_quantization(read_json(source / CONFIG_FILE), scheme, excludes)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return Job(plan, config, excludes, destination, tuple(_small_files(source)))


def write(job: Job, advance: Advance = lambda _: None) -> None:
    """Write the directory under a temporary name in the same folder, then rename it.

    `advance` receives the number of source bytes read since its last call. On any exception the
    temporary directory is removed. Raises ValueError for non-finite weights.
    """
    destination = job.destination.resolve()
    destination.parent.mkdir(parents=True, exist_ok=True)
    _require_space(destination.parent, job.plan.bytes_written)
    directory = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}.partial")
    directory.mkdir()
    try:
        _write_into(directory, job, advance)
        os.rename(directory, destination)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _write_into(directory: Path, job: Job, advance: Advance) -> None:
    write_files(job.plan, directory, advance)
    for path in job.copied:
        shutil.copyfile(path, directory / path.name)
    if (job.plan.source.directory / INDEX_FILE).is_file():
        _write_json(directory / INDEX_FILE, _index(job.plan))
    _write_json(directory / CONFIG_FILE, job.config)


def refuse_occupied(destination: Path) -> None:
    """Raise FileExistsError unless the path is unused or an empty directory."""
    if destination.is_dir():
        if any(destination.iterdir()):
            raise FileExistsError(f"{destination} is not empty; choose a new directory")
        if destination.is_mount():
            raise FileExistsError(f"{destination} is a mount point; name a directory inside it")
    elif destination.exists() or destination.is_symlink():
        raise FileExistsError(f"{destination} exists and is no directory")


def _require_space(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise OSError(f"{directory} has {free} bytes free, the output needs {needed}")


def _small_files(source: Path) -> Iterator[Path]:
    for path in sorted(source.iterdir()):
        ours = path.name in (CONFIG_FILE, INDEX_FILE) or path.suffix in WEIGHT_SUFFIXES
        if path.is_file() and not ours and path.stat().st_size <= LARGEST_COPY:
            yield path


def _index(plan: QuantizePlan) -> dict[str, Any]:
    weight_map = {name: file for file, parts in plan.files.items() for name in parts}
    metadata = {"total_size": plan.bytes_written}
    return {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def plan_text(job: Job) -> str:
    """Return the plan in a few lines: weights quantised and kept, and names in config.json."""
    plan, selection = job.plan, job.plan.selection
    linear = len(selection.quantized) + len(selection.kept)
    style = "patterns" if any(name.startswith(REGEX) for name in job.excludes) else "names"
    lines = [
        f"{plan.source.directory} -> {job.destination}",
        f"scheme    {plan.scheme.name}: {len(selection.quantized)} of {linear} linear weights, "
        f"{_mib(plan.bytes_read)} -> {_mib(plan.bytes_written)} in {len(plan.files)} files",
        f"kept      {len(selection.kept)} linear weights, by {_some(selection.patterns)}",
        f"excludes  as {style} in config.json: {_some(job.excludes)}",
        f"copied    {_some([path.name for path in job.copied])}",
    ]
    return "\n".join(lines)


def _some(names: Sequence[str], limit: int = 12) -> str:
    more = [f"and {len(names) - limit} more"] if len(names) > limit else []
    return " ".join([*names[:limit], *more]) or "-"


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.2f} MiB"
