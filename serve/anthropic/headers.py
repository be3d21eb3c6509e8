"""Request headers of the protocol.

`anthropic-beta` needs no look: a beta opens fields, and each field is known or refused by itself.
"""

from starlette.datastructures import Headers

from serve.asgi.errors import invalid_request

VERSIONS = ("2023-06-01", "2026-10-21")
"""Their messages are alike."""
NOT_HERE = ("anthropic-user-profile-id", "anthropic-workspace-id")


def check_headers(headers: Headers) -> None:
    """Raises 400 for another version of the protocol, and for what one server has not."""
    version = headers.get("anthropic-version", VERSIONS[0])
    if version not in VERSIONS:
        known = " and ".join(VERSIONS)
        message = f"anthropic-version: this server speaks {known}; got {version[:50]!r}"
        raise invalid_request(message, param="anthropic-version", code="unsupported_option")
    for name in NOT_HERE:
        if name in headers:
            message = f"{name} is not implemented in this release; leave it out"
            raise invalid_request(message, param=name, code="unsupported_option")
