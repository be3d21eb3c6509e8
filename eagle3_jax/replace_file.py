"""Write a file so that it appears complete or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces `path`, on disk, when the block succeeds.

    Its temporary name is unique, so that no existing file or link beside `path` is written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    file = temporary.open("xb")
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
