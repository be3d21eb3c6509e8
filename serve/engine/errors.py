"""Why the engine does not answer a request. `asgi/errors.py` gives each its HTTP status."""


class EngineError(Exception):
    """A request that is not answered; the message is for the client."""


class Refused(EngineError):
    """A request that can never succeed as it is. param: the field at fault, if it is known."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QueueFull(EngineError):
    """As many sequences as may be under way are."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the queue is full: {limit} sequences run or wait (--max-num-queued-reqs)"
        )


class Unavailable(EngineError):
    """Not now, but perhaps in `retry_after_s` seconds; None: never again in this process."""

    def __init__(self, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShuttingDown(EngineError):
    """The server ends; another one may take the request."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class EngineDead(EngineError):
    """The engine died with the request under way."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the engine failed: {reason}")


class GenerationFailed(EngineError):
    """The engine gave one sequence up. by_request: what the request asked for was the cause."""

    def __init__(self, message: str, *, by_request: bool) -> None:
        super().__init__(message)
        self.by_request = by_request
