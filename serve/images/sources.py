"""Load the bytes of an image file from the source that a request names."""

import os
import stat
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from convert.images import media_type_of
from serve.images.errors import BadImage
from serve.images.options import ImageOptions
from serve.images.remote import Fetcher, Run

Detail = Literal["auto", "low", "high", "original"]
DATA, FILE, REMOTE = "data:", "file:", ("http:", "https:")
FORM = "its URL must be data:image/TYPE;base64,DATA"


class ImageSource(NamedTuple):
    """An image as a request names it: a data, http(s) or file URL, and OpenAI's `detail`."""

    url: str
    detail: Detail = "auto"

    @property
    def is_data(self) -> bool:
        """True if the URL contains the image."""
        return self.url[: len(DATA)].lower() == DATA


class Loader:
    """A loader of image files, in threads and within limits."""

    def __init__(self, options: ImageOptions, run: Run, fetcher: Fetcher) -> None:
        self._options, self._run, self._fetcher = options, run, fetcher

    async def load(self, source: ImageSource) -> bytes:
        """Load a file; BadImage if it is forbidden, too large or no image."""
        if source.is_data:
            return await self._run(partial(_decoded, source.url, self._options.max_bytes))
        scheme = source.url[: len("https:")].lower()
        if scheme.startswith(REMOTE):
            return await self._fetcher.fetch(source.url)
        if scheme.startswith(FILE):
            return await self._run(partial(_read_file, source.url, self._options))
        raise BadImage(f"{FORM}, or begin with http(s): or file:")


def data_url(data: bytes) -> str:
    """Return an image file as a data URL; BadImage if it is no image."""
    try:
        media_type = media_type_of(data)
    except ValueError as error:
        raise BadImage(f"{error}") from error
    return f"data:{media_type};base64,{b64encode(data).decode()}"


def _decoded(url: str, max_bytes: int) -> bytes:
    """Return the content of a data URI."""
    head, comma, body = url.partition(",")
    kind, *parameters = head[len(DATA) :].lower().split(";")
    if not comma or "base64" not in parameters:
        raise BadImage(f"{FORM}; this one has no base64")
    if kind and not kind.startswith("image/"):
        raise BadImage(f"{FORM}; this one says it is {kind[:100]!r}")
    if len(body) // 4 * 3 - 2 > max_bytes:
        raise BadImage(f"its file is larger than {max_bytes} bytes (--max-image-size)")
    try:
        return b64decode(body, validate=True)
    except (NotBase64, ValueError) as error:
        raise BadImage(f"{FORM}; this one's base64 is damaged: {error}") from error


def _read_file(url: str, options: ImageOptions) -> bytes:
    """Read a file in the clients' directory; errors do not reveal files elsewhere."""
    if options.local_path is None:
        raise BadImage("files of the server are not read (--allowed-local-media-path)")
    refused = BadImage("its file:// URL names no file that may be read")
    parts = urlsplit(url)
    try:
        path = Path(unquote(parts.path)).resolve(strict=True)
        if parts.netloc not in ("", "localhost") or not path.is_relative_to(options.local_path):
            raise refused
        return _bytes_of(path, options.max_bytes)
    except (OSError, RuntimeError, ValueError) as error:
        raise (error if isinstance(error, BadImage) else refused) from error


def _bytes_of(path: Path, max_bytes: int) -> bytes:
    """Read a regular file; reading a pipe could block."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BadImage("its file:// URL names no file that may be read")
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise BadImage(f"its file is larger than {max_bytes} bytes (--max-image-size)")
    return data
