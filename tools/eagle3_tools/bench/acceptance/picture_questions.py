"""Read questions about images from files in MMStar's layout: image, question, answer."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serve.images.sources import data_url

OPTIONS = "Options:"
"""Marker in MMStar's questions before the list of options."""


def read_entries(directory: str | Path) -> Iterator[tuple[Any, str, str]]:
    """Yield (entry, "file:number", file stem) for each line of *.jsonl and row of *.parquet files.

    Raises ValueError, naming the file, if there is none or one cannot be read.
    """
    files = sorted(
        path for end in ("jsonl", "parquet") for path in Path(directory).glob(f"*.{end}")
    )
    if not files:
        raise ValueError(f"--data: {directory} has no .jsonl or .parquet file")
    for file in files:
        rows = _lines(file) if file.suffix == ".jsonl" else _parquet_rows(file)
        yield from ((entry, f"{file}:{number}", file.stem) for number, entry in rows)


def picture_message(
    image: Any, question: str, directory: Path, *, drop_options: bool
) -> dict[str, Any]:
    """Build a user message with an image followed by a question.

    `image` has the bytes of a file, its path below `directory`, or is a mapping with `bytes` or
    `path`. `drop_options` drops the text from "Options:" on. Raises ValueError for other images.
    """
    text = question.partition(OPTIONS)[0].strip() if drop_options else question
    shown = {"type": "image_url", "image_url": {"url": data_url(_file(image, directory))}}
    return {"role": "user", "content": [shown, {"type": "text", "text": text}]}


def _file(image: Any, directory: Path) -> bytes:
    if isinstance(image, Mapping):
        image = image.get("bytes") or image.get("path")
    if isinstance(image, bytes):
        return image
    if not isinstance(image, str):
        raise ValueError(f"image must be the path of a file, got {image!r:.60}")
    path = (directory / image).resolve()
    if not path.is_relative_to(directory.resolve()):
        raise ValueError(f"image must be a path below {directory}, got {image:.100}")
    return path.read_bytes()


def _lines(file: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{file}:{number} is not JSON: {error}") from error


def _parquet_rows(file: Path) -> Iterator[tuple[int, Any]]:
    try:
        from datasets import Dataset, Image
    except ImportError as error:
        raise ValueError(f"--data: {file} needs the extra `datasets`") from error
    rows = Dataset.from_parquet(f"{file}")
    if isinstance(rows.features.get("image"), Image):
        rows = rows.cast_column("image", Image(decode=False))
    yield from enumerate(rows, 1)
