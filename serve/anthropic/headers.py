"""Request headers of the protocol.

`anthropic-beta` is ignored: a beta adds fields, and each field is supported or refused by itself.
"""

from starlette.datastructures import Headers

from serve.asgi.errors import invalid_request

VERSIONS = ("2023-06-01", "2026-10-21")
"""Supported versions, which have the same message format."""
NOT_HERE = ("anthropic-user-profile-id", "anthropic-workspace-id")


def check_headers(headers: Headers) -> None:
    """Raise 400 for another protocol version, or a header for an unsupported feature."""
    version = headers.get("anthropic-version", VERSIONS[0])
    if version not in VERSIONS:
        known = " and ".join(VERSIONS)
        message = f"anthropic-version: this server speaks {known}; got {version[:50]!r}"
        raise invalid_request(message, param="anthropic-version", code="unsupported_option")
    for name in NOT_HERE:
        if name in headers:
            message = f"{name} is not implemented in this release; leave it out"
            raise invalid_request(message, param=name, code="unsupported_option")
