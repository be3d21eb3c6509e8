"""The log: lines on standard error as text or JSON, one for every request."""

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from serve.asgi.auth import is_open
from serve.options.operations import LogFormat
from serve.telemetry.record import RecordHandler, RequestRecord

logger = logging.getLogger(__name__)
PERIOD_S = 1.0
MOST = 1000
"""Different warnings that are remembered."""
Key = tuple[object, ...]


class TextFormatter(logging.Formatter):
    """Time, level, message, and the fields as name=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line before any traceback."""
        fields = (f"{name}={_quoted(value)}" for name, value in _fields(record).items())
        return " ".join([super().formatMessage(record), *fields])


class JsonFormatter(logging.Formatter):
    """One JSON object a line; a traceback is a field of it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
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
    """The value as it is if it is one word, else as JSON, so that a line stays a line."""
    text = str(value)
    return text if text.isascii() and text.isprintable() and " " not in text else json.dumps(text)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


class OncePerSecond(logging.Filter):
    """Lets one of like warnings and errors through a second, so that no client can fill a disk with
    them; the next one says how many it stands for. Alike are those of one logger with one first
    line, raised in one place."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._written: dict[Key, tuple[float, int]] = {}
        """When, and how many like it were left out since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
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


def configure_logging(log_format: LogFormat) -> None:
    """Sends warnings of everybody, and what this package says, to standard error, once."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(OncePerSecond())
    # Libraries that log while they are imported have configured the root already.
    logging.getLogger().handlers = [handler]
    logging.getLogger("serve").setLevel(logging.INFO)


def log_requests(spell: Callable[[int], bytes] | None) -> RecordHandler:
    """What writes a line for a record; spell: gives a token's bytes, None leaves prompts out.

    Probes and collectors are not worth a line, whether the server is ready or not.
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
