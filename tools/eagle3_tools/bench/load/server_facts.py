"""What a running server says of itself: its model and version."""

from typing import Any

from eagle3_tools.bench.load.http_client import Address, request


async def first_model(address: Address) -> dict[str, Any]:
    """The first entry of /v1/models; OSError where there is none."""
    models = (await request(address, "GET", "/v1/models")).json()
    if not models.get("data"):
        raise OSError(f"{address.host}:{address.port} names no model at /v1/models")
    return models["data"][0]


async def version(address: Address) -> str:
    """What /version answers."""
    try:
        return str((await request(address, "GET", "/version")).json()["version"])
    except (OSError, ValueError, KeyError):
        return "unknown"
