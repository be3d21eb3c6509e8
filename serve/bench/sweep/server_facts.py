"""What a running server tells of itself."""

import json
from typing import Any

from serve.bench.http_stream import Address, Exchange
from serve.bench.sweep.client import authorization


async def first_model(address: Address) -> dict[str, Any]:
    """The first entry of /v1/models; OSError where there is none."""
    models = await _get_json(address, "/v1/models")
    if not models.get("data"):
        raise OSError(f"{address.host}:{address.port} names no model at /v1/models")
    return models["data"][0]


async def version(address: Address) -> str:
    """What /version answers."""
    try:
        return str((await _get_json(address, "/version"))["version"])
    except (OSError, ValueError, KeyError):
        return "unknown"


async def _get_json(address: Address, path: str) -> dict[str, Any]:
    async with Exchange(address, "GET", path, headers=authorization()) as response:
        body = await response.read()
    if response.status != 200:
        raise OSError(f"{path} answered {response.status}")
    return json.loads(body)
