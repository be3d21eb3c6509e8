"""Write a file so that it appears complete or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """A new file, on disk and in the place of `path` when the block ends; gone if it fails.

    Its name until then is like no other: what lies beside `path`, a link say, is never written.
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
