"""Reasons why the engine does not answer a request. `asgi/errors.py` maps them to HTTP statuses."""


class EngineError(Exception):
    """A request that is not answered; the message is for the client."""


class Refused(EngineError):
    """A request that can never succeed unchanged; `param` is the wrong field, if known."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QueueFull(EngineError):
    """The number of running and waiting sequences is at its limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the queue is full: {limit} sequences run or wait (--max-num-queued-reqs)"
        )


class Unavailable(EngineError):
    """Temporary failure: retry in `retry_after_s` seconds, or, if None, never in this process."""

    def __init__(self, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShuttingDown(EngineError):
    """The server is shutting down; another server may take the request."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class EngineDead(EngineError):
    """The engine died while the request was running."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the engine failed: {reason}")


class GenerationFailed(EngineError):
    """The engine gave up one sequence; `by_request` if the request caused it."""

    def __init__(self, message: str, *, by_request: bool) -> None:
        super().__init__(message)
        self.by_request = by_request
