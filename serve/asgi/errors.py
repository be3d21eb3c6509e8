"""HTTP errors in the format of the protocol that the path belongs to.

OpenAI's format is {"error": {message, type, param, code}}.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from starlette.types import Scope

from serve.engine.errors import (
    EngineError,
    GenerationFailed,
    QueueFull,
    Refused,
    ShuttingDown,
    Unavailable,
)

MOST_CHARS = 1000
MOST_PATH = 200
ANTHROPIC_PATH = "/v1/messages"
OVERLOADED = 529
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    OVERLOADED: "overloaded_error",
}
DETAILS = {"thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}}
"""Error details by refused field: Anthropic's own tool loop then retries without the field."""


@dataclass(eq=False)
class ApiError(Exception):
    """An answer other than 200: HTTP status and the fields of the error body."""

    status: int
    message: str
    _: KW_ONLY
    code: str
    param: str | None = None
    headers: dict[str, str] | None = None

    def body(self) -> dict[str, Any]:
        """Return the JSON body in OpenAI's format."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def invalid_request(
    message: str, *, param: str | None = None, code: str = "invalid_value"
) -> ApiError:
    """Return 400 for a request that can never succeed unchanged."""
    return ApiError(400, message, param=param, code=code)


def invalid_option(param: str, message: str, *, code: str = "invalid_value") -> PydanticCustomError:
    """Return the error that a pydantic validator raises to answer 400 with this message."""
    # The message is a template value, so that braces in it are kept.
    context = {"param": param, "message": message, "code": code}
    return PydanticCustomError("invalid_option", "{message}", context)


def unsupported_option(
    what: str, instead: str = "leave it out", *, param: str | None = None
) -> PydanticCustomError:
    """Return the error that a validator raises for what is not implemented, such as a field.

    `param` is the field that the error names, if it is not `what`.
    """
    message = f"{what} is not implemented in this release; {instead}"
    return invalid_option(what if param is None else param, message, code="unsupported_option")


def context_exceeded(context: int, has: str, *, param: str = "prompt") -> ApiError:
    """Return 400 for a prompt that leaves no room for an answer, or not for all of it."""
    message = f"the context length is {context} tokens, but the prompt has {has}; shorten "
    message += "the prompt or the answer"
    return invalid_request(message, param=param, code="context_length_exceeded")


def shortened(message: str) -> str:
    """Truncate a message that quotes a long value."""
    return message if len(message) <= MOST_CHARS else f"{message[:MOST_CHARS]}..."


def as_api_error(error: Exception) -> ApiError:
    """Return the HTTP error for an error of a request. Tracebacks of bugs go to the log alone."""
    message = str(error)
    match error:
        case ApiError():
            return error
        case RequestValidationError() | ValidationError():
            return from_validation(error)
        case Refused(param=param):
            return invalid_request(message, param=param)
        case QueueFull():
            return ApiError(429, message, code="queue_full", headers={"Retry-After": "1"})
        case ShuttingDown():
            # The next request should go to another server.
            headers = {"Retry-After": "10", "Connection": "close"}
            return ApiError(503, message, code="unavailable", headers=headers)
        case Unavailable(retry_after_s=seconds):
            headers = None if seconds is None else {"Retry-After": str(seconds)}
            return ApiError(503, message, code="unavailable", headers=headers)
        case GenerationFailed(by_request=by_request):
            return ApiError(400 if by_request else 500, message, code="generation_failed")
        case EngineError():
            return ApiError(503, message, code="engine_failed")
        case _:
            message = f"internal error ({type(error).__name__})"
            return ApiError(500, message, code="internal_error")


@contextmanager
def fields_renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Raise errors about a chat as ApiError, with the fields' `names` in the client's protocol."""
    try:
        yield
    except (ApiError, Refused, ValidationError) as error:
        found = as_api_error(error)
        if (old := found.param) is not None and (new := names.get(old)) is not None:
            found = replace(found, param=new, message=found.message.replace(old, new))
        raise found from error.__cause__


def install_error_handlers(app: FastAPI) -> None:
    """Give every error of `app`, including the framework's own, the format of its protocol."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        return as_response(as_api_error(error), request.scope)

    for kind in (ApiError, EngineError, RequestValidationError, Exception):
        app.add_exception_handler(kind, answer)

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> JSONResponse:
        code = "not_found" if error.status_code == 404 else "http_error"
        headers = dict(error.headers) if error.headers else None
        message = _where_to_look(request, error)
        found = ApiError(error.status_code, message, code=code, headers=headers)
        return as_response(found, request.scope)


def _where_to_look(request: Request, error: HTTPException) -> str:
    """Return the message of a framework error, with the path, which the framework leaves out."""
    docs = f"{request.scope.get('root_path', '')}/docs lists what there is"
    path = request.url.path[:MOST_PATH]
    match error:
        case HTTPException(status_code=404, detail="Not Found"):
            return f"there is no {path}; {docs}"
        case HTTPException(status_code=405):
            allowed = (error.headers or {}).get("Allow", "other methods")
            return f"{path} takes {allowed}, not {request.method[:MOST_PATH]}; {docs}"
        case _:
            return str(error.detail)


def as_response(error: ApiError, scope: Scope) -> JSONResponse:
    """Return the response for an error, in the format of the request's path."""
    status, body = error.status, error.body()
    if below_root(scope).startswith(ANTHROPIC_PATH):
        request_id = scope["state"]["record"].request_id
        status, body = anthropic_form(status, error.message, error.param, request_id)
    return JSONResponse(body, status_code=status, headers=error.headers)


def from_validation(error: RequestValidationError | ValidationError) -> ApiError:
    """Return the answer for an invalid body or query, from its first error."""
    if isinstance(error, ValidationError):
        first: Any = error.errors(include_url=False, include_input=False)[0]
    else:
        first = error.errors()[0]
    context = first.get("ctx", {})
    if first["type"] == "invalid_option":
        return invalid_request(first["msg"], param=context["param"], code=context["code"])
    path = [str(part) for part in first["loc"] if part != "body"]
    where = ".".join(path) or "body"
    return invalid_request(f"{where}: {first['msg']}", param=path[0] if path else None)


def anthropic_form(
    status: int, message: str, param: str | None, request_id: str
) -> tuple[int, dict[str, Any]]:
    """Return status and body. A full queue is an overload (529), not a rate limit (429)."""
    status = OVERLOADED if status == 429 else status
    other = "invalid_request_error" if status < 500 else "api_error"
    error: dict[str, Any] = {"type": TYPES.get(status, other), "message": message}
    if param in DETAILS:
        error["details"] = DETAILS[param]
    return status, {"type": "error", "error": error, "request_id": request_id}


def below_root(scope: Scope) -> str:
    """Return the path without the root path, as the router sees it."""
    path, root = scope["path"], scope.get("root_path", "")
    return path[len(root) :] if path.startswith(f"{root}/") else path
