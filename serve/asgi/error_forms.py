"""Errors in Anthropic's format, for its paths. All other paths use OpenAI's format."""

from typing import Any

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
