"""The log: lines on standard error as text or JSON, one for every request."""

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

from serve.asgi.auth import is_open
from serve.options.operations import LogFormat
from serve.telemetry.record import RecordHandler, RequestRecord

logger = logging.getLogger(__name__)
PERIOD_S = 1.0
MOST = 1000
"""Maximum number of different warnings that are tracked."""
Key = tuple[object, ...]


class TextFormatter(logging.Formatter):
    """Formats time, level, message, and the fields as name=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line before any traceback."""
        fields = (f"{name}={_quoted(value)}" for name, value in _fields(record).items())
        return " ".join([super().formatMessage(record), *fields])


class JsonFormatter(logging.Formatter):
    """Formats one JSON object per line; a traceback is one of its fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _quoted(value: object) -> str:
    """Return a value that is one word unchanged, else as JSON, so that it stays on one line."""
    text = str(value)
    return text if text.isascii() and text.isprintable() and " " not in text else json.dumps(text)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


class OncePerSecond(logging.Filter):
    """Passes one of several equal warnings or errors per second, so that no client can fill a disk.

    The next one has the number of suppressed ones. Equal ones have the same logger, first line and
    place where they were raised.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._written: dict[Key, tuple[float, int]] = {}
        """Time of the last written record, and the number of equal ones suppressed since."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        key, now = _key(record), self._clock()
        written, left_out = self._written.pop(key, (float("-inf"), 0))
        if now - written < PERIOD_S:
            self._written[key] = (written, left_out + 1)
            return False
        if len(self._written) >= MOST:
            self._written.pop(next(iter(self._written)), None)
        self._written[key] = (now, 0)
        if left_out:
            record.fields = {**getattr(record, "fields", {}), "left_out": left_out}
        return True


def _key(record: logging.LogRecord) -> Key:
    raised = record.exc_info[2] if record.exc_info else None
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    where = (raised.tb_frame.f_code, raised.tb_lineno) if raised else ()
    return (record.name, str(record.msg).partition("\n")[0], *where)


@cache
def warn_once(log: logging.Logger, message: str, *args: str) -> None:
    """Log a warning unless it was logged before: clients repeat its cause in every request."""
    log.warning(message, *args)


def configure_logging(log_format: LogFormat) -> None:
    """Send warnings of all packages, and info messages of serve, to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(OncePerSecond())
    # Libraries that log during their import have configured the root logger already.
    logging.getLogger().handlers = [handler]
    logging.getLogger("serve").setLevel(logging.INFO)


def log_requests(spell: Callable[[int], bytes] | None) -> RecordHandler:
    """Return a handler that logs a line per record, except for probes and collectors.

    `spell` returns a token's bytes; None leaves prompts out.
    """

    def log(record: RequestRecord) -> None:
        if is_open(record.path) and record.status in (200, 503):
            return
        fields = record.fields()
        if spell and record.generated:
            prompt = record.generated.states[0].request.prompt_ids
            fields["prompt"] = b"".join(map(spell, prompt)).decode(errors="replace")
        logger.info("request", extra={"fields": fields})

    return log
