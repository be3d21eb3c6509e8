"""The log: lines on standard error as text or JSON, one for every request."""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from serve.asgi.auth import is_open
from serve.options.operations import LogFormat
from serve.telemetry.record import RecordHandler, RequestRecord
from serve.telemetry.repeats import OncePerSecond

logger = logging.getLogger(__name__)


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
            fields["prompt"] = b"".join(map(spell, record.generated.prompt_ids)).decode(
                errors="replace"
            )
        logger.info("request", extra={"fields": fields})

    return log
