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
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from starlette.types import Scope

from serve.asgi.error_forms import ANTHROPIC_PATH, anthropic_form
from serve.asgi.root_path import below_root
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
OWN_ERRORS = ("unsupported_option", "invalid_option")


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


def invalid_option(param: str, message: str) -> PydanticCustomError:
    """Return the error that a pydantic validator raises to answer 400 with this message."""
    # The message is a template value, so that braces in it are kept.
    return PydanticCustomError("invalid_option", "{message}", {"param": param, "message": message})


def context_exceeded(context: int, has: str, *, param: str = "prompt") -> ApiError:
    """Return 400 for a prompt that leaves no room for an answer, or not for all of it."""
    message = f"the context length is {context} tokens, but the prompt has {has}; shorten "
    message += "the prompt or the answer"
    return invalid_request(message, param=param, code="context_length_exceeded")


def shortened(message: str) -> str:
    """Truncate a message that quotes a long value."""
    return message if len(message) <= MOST_CHARS else f"{message[:MOST_CHARS]}..."


def as_api_error(error: EngineError) -> ApiError:
    """Return the HTTP error for an error of `serve.engine`."""
    message = str(error)
    match error:
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
        case _:
            return ApiError(503, message, code="engine_failed")


@contextmanager
def fields_renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Rename fields in errors about a chat: `names` maps them to the client's protocol."""
    try:
        yield
    except (ApiError, Refused) as error:
        error = as_api_error(error) if isinstance(error, Refused) else error
        if (old := error.param) is None or (new := names.get(old)) is None:
            raise error from error.__cause__
        raise replace(error, param=new, message=error.message.replace(old, new)) from error


def install_error_handlers(app: FastAPI) -> None:
    """Give every error of `app`, including the framework's own, the format of its protocol."""

    @app.exception_handler(ApiError)
    async def on_api_error(request: Request, error: ApiError) -> JSONResponse:
        return as_response(error, request.scope)

    @app.exception_handler(EngineError)
    async def on_engine_error(request: Request, error: EngineError) -> JSONResponse:
        return as_response(as_api_error(error), request.scope)

    @app.exception_handler(RequestValidationError)
    async def on_invalid_body(request: Request, error: RequestValidationError) -> JSONResponse:
        return as_response(from_validation(error), request.scope)

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> JSONResponse:
        code = "not_found" if error.status_code == 404 else "http_error"
        headers = dict(error.headers) if error.headers else None
        message = _where_to_look(request, error)
        found = ApiError(error.status_code, message, code=code, headers=headers)
        return as_response(found, request.scope)

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> JSONResponse:
        # The traceback goes to the log, not to the client.
        message = f"internal error ({type(error).__name__})"
        return as_response(ApiError(500, message, code="internal_error"), request.scope)


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


def from_validation(error: RequestValidationError) -> ApiError:
    """Return the answer for a body that fails validation, from its first error."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return invalid_request(f"the body is not valid JSON: {reason}", code="invalid_json")
    if first["type"] in OWN_ERRORS:
        code = "unsupported_option" if first["type"] == "unsupported_option" else "invalid_value"
        return invalid_request(first["msg"], param=first["ctx"]["param"], code=code)
    path = [str(part) for part in first["loc"] if part != "body"]
    where = ".".join(path) or "body"
    return invalid_request(f"{where}: {first['msg']}", param=path[0] if path else None)
