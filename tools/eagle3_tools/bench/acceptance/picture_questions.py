"""Questions about pictures in files laid out as MMStar is: image, question, answer."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serve.images.sources import data_url

OPTIONS = "Options:"
"""What MMStar's questions have in front of the answers to choose from."""


def read_entries(directory: str | Path) -> Iterator[tuple[Any, str, str]]:
    """The lines and rows of a directory's *.jsonl and *.parquet files, with what an error calls the
    place of each, and the file's name without its ending. Raises ValueError, naming the file, for
    what can't be read."""
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
    """What a user says who shows an image, then asks.

    image: the bytes of a file, or its path below the directory, or a mapping with either, as data
    sets have it. drop_options: leaves out what stands behind "Options:". Raises ValueError.
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
