"""The part of a server in prefill and decode apart: --kv-role, or vLLM's --kv-transfer-config."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

ROLE_FLAG, CONFIG_FLAG = "--kv-role", "--kv-transfer-config"
CONNECTOR = "Eagle3JaxConnector"
GIB = 2**30
DEFAULT_BYTES = 4 * GIB
"""Host memory where --kv-offloading-size isn't given: pages go through it."""
KVRole = Literal["producer", "consumer", "both"]
ROLES: tuple[KVRole, ...] = get_args(KVRole)


@dataclass(frozen=True)
class KVTransferConfig:
    """role: producers keep prompts' pages for others, consumers fetch them. host, port: where a
    producer hands pages out, and what it tells consumers; port 0 is any free one. expiry_s: how
    long pages that nobody fetches are kept, from the answer on. producers: hosts whose pages a
    consumer takes: whoever sends them could send anything, to all who share the prefix."""

    role: KVRole
    engine_id: str | None = None
    host: str = "127.0.0.1"
    port: int = 14579
    expiry_s: float = 480.0
    producers: tuple[str, ...] = ("127.0.0.1", "::1", "localhost")

    @property
    def produces(self) -> bool:
        """Whether it keeps pages for others."""
        return self.role != "consumer"

    @property
    def consumes(self) -> bool:
        """Whether it fetches pages."""
        return self.role != "producer"


def read_kv_transfer_config(role: str | None, text: str | None) -> KVTransferConfig | None:
    """None where nothing is transferred. Raises ValueError, naming flag and field."""
    if text is None:
        return None if role is None else KVTransferConfig(_role(role, ROLE_FLAG))
    if role is not None:
        raise ValueError(f"give one of {ROLE_FLAG} and {CONFIG_FLAG}")
    fields = _read_json(text)
    connector = fields.pop("kv_connector", CONNECTOR)
    if connector != CONNECTOR:
        raise ValueError(
            f"{CONFIG_FLAG} kv_connector: {connector!r} is of another engine; leave it out, or "
            f"say {CONNECTOR}"
        )
    if "kv_role" not in fields:
        raise ValueError(f"{CONFIG_FLAG} kv_role must be kv_producer, kv_consumer or kv_both")
    given = {OURS[name]: value for name, value in fields.items() if name in OURS}
    given["role"] = _role(str(fields["kv_role"]).removeprefix("kv_"), f"{CONFIG_FLAG} kv_role")
    extra = fields.get("kv_connector_extra_config", {})
    given |= _read_extra(extra)
    if not 0 <= given.get("port", 0) <= 65535:
        raise ValueError(f"{CONFIG_FLAG} kv_port must be in 0..65535; got {given['port']}")
    return KVTransferConfig(**given)


def _read_extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What is ours in kv_connector_extra_config."""
    given: dict[str, Any] = {}
    if unknown := sorted(extra.keys() - {"expiry_s", "producers"}):
        raise ValueError(
            f"{CONFIG_FLAG} kv_connector_extra_config: {unknown}; there are expiry_s, producers"
        )
    if (expiry := extra.get("expiry_s")) is not None:
        if type(expiry) not in (int, float) or not 0 < expiry < 1e6:
            raise ValueError(f"{CONFIG_FLAG} expiry_s must be seconds above 0; got {expiry!r}")
        given["expiry_s"] = float(expiry)
    if (hosts := extra.get("producers")) is not None:
        if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
            raise ValueError(f"{CONFIG_FLAG} producers must be a list of hosts; got {hosts!r}")
        given["producers"] = tuple(hosts)
    return given


def _role(text: str, where: str) -> Any:
    if text not in ROLES:
        raise ValueError(f"{where} must be one of {', '.join(ROLES)}; got {text!r}")
    return text


def _read_json(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{CONFIG_FLAG} is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{CONFIG_FLAG} must be a JSON object; got {text}")
    if unknown := sorted(fields.keys() - FIELDS.keys()):
        raise ValueError(f"{CONFIG_FLAG}: unknown fields {unknown}; there are {', '.join(FIELDS)}")
    given = {name: value for name, value in fields.items() if value is not None}
    for name, value in given.items():
        if type(value) is not FIELDS[name]:
            raise ValueError(f"{CONFIG_FLAG} {name} must be {FIELDS[name].__name__}; got {value!r}")
    return given


OURS = {"engine_id": "engine_id", "kv_ip": "host", "kv_port": "port"}
FIELDS: Mapping[str, type] = {
    "kv_connector": str,
    "kv_role": str,
    "engine_id": str,
    "kv_ip": str,
    "kv_port": int,
    "kv_connector_extra_config": dict,
}
"""vLLM's, as far as they mean something here."""
