"""Query a server's model and version."""

from typing import Any

from eagle3_tools.bench.load.http_client import Address, request


async def first_model(address: Address) -> dict[str, Any]:
    """Return the first entry of /v1/models; raise OSError if there is none."""
    models = (await request(address, "GET", "/v1/models")).json()
    if not models.get("data"):
        raise OSError(f"{address.host}:{address.port} names no model at /v1/models")
    return models["data"][0]


async def version(address: Address) -> str:
    """Return the version from /version, or "unknown"."""
    try:
        return str((await request(address, "GET", "/version")).json()["version"])
    except (OSError, ValueError, KeyError):
        return "unknown"
