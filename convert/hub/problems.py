"""Explain a failed download in one line that states a remedy."""

import errno
from pathlib import Path

from huggingface_hub import constants, get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from convert.hub.source import Source

FULL = (errno.ENOSPC, errno.EDQUOT)
ELSEWHERE = "--download-dir or HF_HOME names another directory"


def cache_of(source: Source) -> Path:
    """Return the cache directory of a source's files."""
    return Path(source.cache or constants.HF_HUB_CACHE)


def explained(error: Exception, source: Source) -> OSError:
    """Return the one-line error that replaces the hub library's error."""
    causes, lacking = _causes(error), f"{cache_of(source)} does not hold all of {source}"
    if any(isinstance(cause, OfflineModeIsEnabled) for cause in causes):
        return FileNotFoundError(f"HF_HUB_OFFLINE is set, and {lacking}")
    if any(isinstance(cause, OSError) and cause.errno in FULL for cause in causes):
        return OSError(f"{source}: the disk of {cache_of(source)} is full; {ELSEWHERE}")
    if isinstance(error, HfHubHTTPError):
        return FileNotFoundError(_refused(error, source))
    if isinstance(error, LocalEntryNotFoundError):
        return OSError(
            f"{constants.ENDPOINT} can't be reached ({_first_line(causes[-1])}), and {lacking}"
        )
    if isinstance(error, OSError) and error.filename:
        return OSError(f"{source}: can't write {error.filename}: {error.strerror}; {ELSEWHERE}")
    return OSError(
        f"{source}: the download from {constants.ENDPOINT} failed ({_first_line(error)}); the same "
        "command goes on with the files that are whole"
    )


def _causes(error: BaseException) -> list[BaseException]:
    """Return the error and its chain of causes."""
    found: list[BaseException] = []
    while error not in found:
        found.append(error)
        error = error.__cause__ or error
    return found


def _refused(error: HfHubHTTPError, source: Source) -> str:
    """Explain an HTTP error of the hub."""
    where, status = constants.ENDPOINT, error.response.status_code
    token = "the token in use" if get_token() else "anybody without a token (HF_TOKEN is not set)"
    if isinstance(error, GatedRepoError):
        page = f"{where}/{source.name}"
        return f"{source} is gated, and {token} is barred: accept its terms at {page}"
    if isinstance(error, RevisionNotFoundError):
        return f"{source.name} has no revision {source.revision or 'main'!r} at {where}"
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"{source.name} does not exist: it is no directory, and {where} shows no repository of "
            f"that name to {token}"
        )
    if status in (401, 403):
        return f"{source}: {where} refuses {token} (status {status})"
    return f"{source}: {where} answered with status {status} ({_first_line(error)})"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
